"""Score text files: sliding-window perplexity from the command line.

    python score.py samples/story.txt
    python score.py --help

The door to the package cli, which does the work.
"""

import sys

from perplexity_sliding.cli import start

if __name__ == "__main__":
    sys.exit(start())
