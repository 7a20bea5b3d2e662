"""The passes to consider: settings that share the tokens they read."""

from dataclasses import dataclass, replace

from ..arguments import Setting, check_setting
from ..errors import ArgumentError
from ..layouts import LAYOUTS, arrange, is_wikitext
from ..protocols import PROTOCOLS, Protocol
from . import wikitext
from .priors import STARTS, prior_of, prior_of_detokenized
from .scorer import Case

WINDOWS = (512, 1024, 2048, 4096)
STRIDES = (512, 256, 128, 64, 32)
OVERLAPS = (1, 2, 8)  # bounds of the windows per token, which separate passes by cost


@dataclass(frozen=True)
class Step:
    """Settings that are scored in one pass over the texts of each case.

    Attributes:
        texts: texts of each case, in the step's layout.
        start: `add_start_token`.
        settings: settings that can score every case, with their weights.
        num_tokens: tokens read by the merged passes.
        layout_prior: weight of the layout.
        originals: texts before detokenization, if they were detokenized.
    """

    layout: str
    texts: list[list[str]]
    start: bool | str
    settings: dict[Setting, float]
    num_tokens: int
    layout_prior: float
    originals: list[list[str]] | None = None

    @property
    def worth(self) -> float:
        """Weight of the settings per token that they read."""
        return sum(self.settings.values()) * self.layout_prior / max(1, self.num_tokens)


def list_steps(cases: list[Case]) -> list[Step]:
    """List the steps in descending order of their worth per token.

    Raises:
        ValueError: no setting can score the texts.
    """
    steps: list[Step] = []
    seen: set[tuple] = set()  # texts as a protocol joins them: two layouts may be one to it
    of_wikitext = any(is_wikitext(case.texts) for case in cases)
    for name, layout in LAYOUTS.items():
        usual = layout.usual_for_wikitext if of_wikitext else layout.usual
        texts = [arrange(case.texts, name) for case in cases]
        joined = {p: (p.name, *(joined_by(p, own) for own in texts)) for p in PROTOCOLS.values()}
        protocols = [protocol for protocol, key in joined.items() if key not in seen]
        if not usual or not protocols or not all(texts):
            continue
        seen.update(joined.values())
        for start in STARTS:
            settings = list_choices(cases, protocols, start)
            whole = Step(name, texts, start, dict.fromkeys(settings, 0.0), 0, usual)
            steps += split_steps(cases, whole)
        if of_wikitext and name in ("as-is", "joined", "each-article"):
            steps += detokenizing_steps(cases, name, texts, usual)
    if not steps:
        raise ArgumentError("texts", "be long enough to score", got="texts of fewer than 2 tokens")
    return sorted(steps, key=lambda step: -step.worth)


def joined_by(protocol: Protocol, texts: list[str]) -> tuple[str, ...]:
    """Return texts, joined as the protocol requires."""
    if protocol.join is None or protocol.join == "tokens":
        return tuple(texts)
    return (protocol.join.join(texts),)


def detokenizing_steps(
    cases: list[Case], layout: str, texts: list[list[str]], usual: float
) -> list[Step]:
    """List the steps that detokenize WikiText and count the words of the original."""
    steps = []
    for protocol in PROTOCOLS.values():
        detokenize = protocol.detokenize or wikitext.detokenize
        prose = [[detokenize(text) for text in own] for own in texts]
        if prose != texts:
            settings = dict.fromkeys(list_choices(cases, [protocol], True), 0.0)
            prior = prior_of_detokenized(protocol, layout, usual)
            step = Step(layout, prose, True, settings, 0, prior, texts)
            steps += split_steps(cases, step)
    return steps


def split_steps(cases: list[Case], whole: Step) -> list[Step]:
    """Split a step into the tools' own settings and the others, and each by its cost."""
    planned = [case.scorer.plan(own, list(whole.settings)) for case, own in zip(cases, whole.texts)]
    groups: dict[tuple[int, bool], dict[Setting, float]] = {}
    seen = set()
    for setting in whole.settings:
        if all(setting in own for own in planned):
            plans = [own[setting].plan for own in planned]
            overlap = max(plan.max_length / plan.stride for plan in plans)
            cost = sum(overlap > bound for bound in OVERLAPS)
            is_own = setting.max_length is None and setting.stride is None
            key = tuple((p.protocol.name, p.max_length, p.stride, p.start) for p in plans)
            if key not in seen:
                seen.add(key)
                usual = prior_of(setting, plans[0])
                groups.setdefault((cost, is_own), {})[setting] = usual
    steps = []
    for settings in groups.values():
        costs = [
            case.scorer.cost([own[setting] for setting in settings])
            for case, own in zip(cases, planned)
        ]
        steps.append(replace(whole, settings=settings, num_tokens=sum(costs)))
    return steps


def list_choices(cases: list[Case], protocols: list[Protocol], start: bool | str) -> list[Setting]:
    """List the usual settings, each tool's own first."""
    limits = [case.scorer.limit for case in cases if case.scorer.limit is not None]
    limit = min(limits, default=None)
    windows = [None, *(length for length in WINDOWS if limit is None or length <= limit)]
    choices = []
    for protocol in protocols:
        for window in windows:
            length = window or limit
            strides: list[int | None] = [None]
            if "stride" in protocol.supported_arguments and length is not None:
                usual = (length, length // 2, *STRIDES)
                strides += sorted({s for s in usual if 0 < s <= length}, reverse=True)
            choices += [Setting(protocol, window, stride, start) for stride in strides]
    return sorted(filter(is_allowed, choices), key=lambda s: (s.max_length or 0, s.stride or 0))


def is_allowed(setting: Setting) -> bool:
    """Return whether the protocol's tool has the settings."""
    try:
        check_setting(setting)
    except ValueError:
        return False
    return True
