"""`python -m perplexity_sliding` and the command `perplexity-sliding`."""

import sys

from .cli import start

if __name__ == "__main__":
    sys.exit(start())
