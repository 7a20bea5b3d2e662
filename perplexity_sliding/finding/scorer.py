"""A model that scores many settings in shared passes, and the texts that it scores."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from ..api import Models, check, in_use, make_plan, open_session, report, run
from ..arguments import Setting
from ..engines.sources import in_use_together
from ..models.interface import ScoredModel
from ..plan.measurement import Measurement
from ..plan.settings import Corpus, plan_settings
from ..plan.windows import count_inputs, merge_windows
from ..protocols import PROTOCOLS
from ..scoring.distributed import Processes
from .figures import Figure


class Scorer:
    """An open model that scores any list of settings in shared passes.

    Attributes:
        name: last part of its name, in lower case; None for a live model without a name.
        options: command-line options that select the model.
    """

    def __init__(self, source: dict) -> None:
        self.arguments = source
        model_id, model, dtype = (source.get(name) for name in ("model_id", "model", "dtype"))
        name = model_id or getattr(model, "name_or_path", None)
        self.name = short_name(name) if name else None
        self.options = [] if model_id is None else ["--model", str(model_id)]
        self.options += [] if dtype is None else ["--dtype", str(dtype).removeprefix("torch.")]
        self.processes = Processes(False)
        request = check(self.processes, {"predictions": ["a text"], **source})
        self.model: ScoredModel = request.source.open()
        with in_use_together([self.model]):
            self.model.check()

    @property
    def limit(self) -> int | None:
        return self.model.limit.length

    def count_tokens(self, texts: list[str]) -> int:
        """Count the tokens of texts."""
        return sum(map(len, self.corpus(texts).read(PROTOCOLS["sliding"], None)[1]))

    def corpus(self, texts: list[str]) -> Corpus:
        return Corpus(self.model.tokenizer, texts, with_offsets=False)

    def plan(self, texts: list[str], settings: list[Setting]) -> dict[Setting, Measurement]:
        """Plan the settings that the texts and the model allow."""
        try:
            planned = plan_settings(self.corpus(texts), self.model.limit, settings, True)
        except ValueError:  # all are refused
            return {}
        return {s: m for s, m in planned.items() if isinstance(m, Measurement)}

    def cost(self, measurements: list[Measurement]) -> int:
        """Count the tokens that the merged passes of measurements read."""
        numbers: dict[bytes, int] = {}
        planned: list = []
        for measurement in measurements:
            for stream, windows in zip(measurement.streams, measurement.windows):
                number = numbers.setdefault(stream.ids.tobytes(), len(numbers))
                planned += measurement.plan.over(number, windows)
        return count_inputs(merge_windows(planned, self.model.prefixes_agree)[0])

    def score(
        self, texts: list[str], settings: list[Setting], callback: Callable | None, **others: object
    ) -> list[dict]:
        """Return the result of each setting."""
        given = {"predictions": texts, **self.arguments, "callback": callback, **others}
        request = check(self.processes, given)
        request = replace(request, settings=settings, gives_list=True)
        with open_session(request, self.processes) as session:
            with in_use(Models(self.model), session) as models:
                plan = make_plan(request, models)
                scores = run(session, plan, models)
            return report(plan, scores)["measurements"]


@dataclass(frozen=True)
class Case:
    """A figure with its model and texts.

    Attributes:
        named: command-line arguments that select the texts.
    """

    figure: Figure
    scorer: "Scorer"
    texts: list[str]
    named: list[str]


def short_name(model: str) -> str:
    """Return the last part of a model's name, in lower case."""
    return str(model).rstrip("/").rpartition("/")[2].lower()
