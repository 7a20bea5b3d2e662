"""Print the texts of a layout as JSON lines with a column `text`.

python -m perplexity_sliding.cli.layouts each-line wiki.test.raw > laid-out.jsonl
"""

import json
import sys

from ..layouts import LAYOUTS, arrange
from .messages import say, to_stdout
from .options import parse_arguments
from .reading import open_texts


def main(argv: list[str]) -> int:
    """Print the texts of a layout, one JSON object per line; return the exit code."""
    if not argv or argv[0] not in LAYOUTS:
        say(f"usage: layouts NAME FILE ...; NAME is one of {', '.join(LAYOUTS)}")
        return 2
    layout, *rest = argv
    texts = list(open_texts(parse_arguments(rest)))
    for text in texts:
        if text.error is not None:
            say(f"error: {text.name}: {text.error}")
            return 2
    arranged = arrange([text.text for text in texts], layout)
    to_stdout(json.dumps({"text": text}) + "\n" for text in arranged)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
