"""The values of a setting under each average, and the commands that repeat them."""

import math
import shlex
from collections.abc import Callable, Iterable

from ..arguments import Setting
from .priors import AVERAGES, COUNT_ALL_LABELS, DERIVED, prior_of_average
from .scorer import Case, Scorer
from .steps import Step

FIELDS = ("protocol", "max_length", "stride", "add_start_token", "layout", "average")
# Averages over the bytes of the prose, which such a tool does not report.
PER_BYTE = ("byte_perplexity", "bits_per_byte", "bits_per_character")


def score_texts(
    scorer: Scorer, step: Step, texts: list[str], originals: list[str], callback: Callable | None
) -> list[dict]:
    """Return the results of a step's settings on texts."""
    if step.originals is None:
        return scorer.score(texts, list(step.settings), callback)
    protocol = next(iter(step.settings)).protocol
    results = scorer.score(
        texts,
        list(step.settings),
        callback,
        word_counts=[protocol.count_words(text) for text in originals],
        detokenizer=protocol.detokenize.__name__ if protocol.detokenize else "wikitext",
    )
    if protocol.scores_each_text:  # the command line counts no bytes of joined texts
        ratio = num_bytes(texts) / num_bytes(originals)
        for result in results:
            result["bits_per_original_byte"] = result["bits_per_byte"] * ratio
    return [{key: r[key] for key in r if key not in PER_BYTE} for r in results]


def num_bytes(texts: list[str]) -> int:
    return sum(len(text.encode("utf-8")) for text in texts)


def list_entries(
    cases: list[Case], step: Step, setting: Setting, results: list[dict]
) -> list[dict]:
    """List the averages of a setting's results; of equal ones, only the most common."""
    layout = step.layout
    if step.originals is not None:
        layout += ", detokenized" + (" by the tool" if setting.protocol.detokenize else "")
    usual = step.settings[setting] * step.layout_prior
    of_all = {
        **{"protocol": setting.protocol.name, "layout": layout},
        **{name: common(r[name] for r in results) for name in FIELDS[1:4]},
        **{"setting": setting, "commands": write_commands(cases, step, setting)},
    }
    averaged = [averages_of(result) for result in results]
    priors = {name: prior_of_average(setting.protocol.name, name) for name in averaged[0]}
    entries: list[dict] = []
    for average in sorted(priors, key=lambda name: -priors[name]):
        values = [of_case.get(average, math.nan) for of_case in averaged]
        if not all(0 < value < math.inf for value in values):
            continue
        if not any(agree(values, entry["values"]) for entry in entries):
            prior = usual * priors[average]
            entries.append(of_all | {"average": average, "values": values, "prior": prior})
    return entries


def common(values: Iterable) -> object:
    """Return the common value, or the list if values differ."""
    values = list(values)
    return values[0] if all(value == values[0] for value in values) else values


def agree(values: list[float], others: list[float]) -> bool:
    return all(math.isclose(a, b, rel_tol=1e-9) for a, b in zip(values, others))


def averages_of(result: dict) -> dict[str, float]:
    """Return the values of a result that a paper could print."""
    values = {key: result[key] for key in AVERAGES if result.get(key) is not None}
    derived = {
        name: convert(values[key])
        for name, (key, convert, _) in DERIVED.items()
        if 0 < values.get(key, 0) < math.inf
    }
    if result["protocol"] in COUNT_ALL_LABELS:
        derived |= over_all_labels(values["perplexity"], result["max_length"])
    return values | derived


def over_all_labels(perplexity: float, block: int) -> dict[str, float]:
    """Return the numbers of `Trainer.evaluate` if it divides by all labels of a block.

    transformers does so from 4.57 until 2026, and still for models such as GPT-2, whose loss it does
    not recognise as shifted.
    """
    loss = math.log(perplexity) * (block - 1) / block
    return {"trainer_nats_per_token": loss, "trainer_perplexity": math.exp(loss)}


def write_commands(cases: list[Case], step: Step, setting: Setting) -> list[str]:
    """Return the command that repeats a setting, for each case."""
    given = {
        "--protocol": setting.protocol.name,
        "--max-length": setting.max_length,
        "--stride": setting.stride,
        "--add-start-token": {False: "false", "every": "every"}.get(setting.add_start_token),
        "--detokenize": None if step.originals is None else "wikitext",
    }
    options = [str(part) for pair in given.items() if pair[1] is not None for part in pair]
    commands = []
    for case in cases:
        before, files = "", case.named
        if step.layout != "as-is":
            lay_out = ["python", "-m", "perplexity_sliding.cli.layouts", step.layout, *files]
            before, files = f"{shlex.join(lay_out)} > laid-out.jsonl && ", ["laid-out.jsonl"]
        command = ["python", "score.py", *files, *case.scorer.options, *options, "--json"]
        commands.append(before + shlex.join(command))
    return commands
