"""What the tests of the command line share: running it in place."""

import json
from dataclasses import dataclass

import pytest

from perplexity_sliding.cli import main as score


@dataclass
class Outcome:
    """What a run of the command line left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict:
        return json.loads(self.out)

    @property
    def warnings(self) -> list[str]:
        return [line for line in self.err.splitlines() if ": warning: " in line]


@pytest.fixture
def call(capsys, tiny):
    """Run the command line with the tiny model in this process, whatever comes of it."""

    def call(*argv: object, model: str | None = None) -> Outcome:
        model = [] if "--merge" in argv else [f"--model={model or tiny}"]
        code = score.main([*map(str, argv), *model])
        printed = capsys.readouterr()
        return Outcome(code, printed.out, printed.err)

    return call
