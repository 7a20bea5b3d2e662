"""`python -m perplexity_sliding` and the command `perplexity-sliding`."""

import sys

from perplexity_sliding.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
