"""Score text files: sliding-window perplexity from the command line.

    python score.py samples/story.txt
    python score.py --help

The door to the package cli, which does the work.
"""

import sys

try:
    from cli.main import main
except ModuleNotFoundError as error:
    sys.exit(
        f"score.py: error: the package {error.name} is missing: pip install -r requirements.txt"
    )

if __name__ == "__main__":
    sys.exit(main())
