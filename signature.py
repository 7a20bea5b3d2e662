"""The signature: on one line, whatever a number depends on.

It covers what a forward pass depends on, as far as a description can, and nothing that only says
where a model came from.  What was put over a model's code, where that is cheap to see, is said in it:
`+modified`.  Beside it stands the probe, a measured number: the model's mean nll of a made-up text.
Equal signatures and equal probes mean equal numbers.
"""

import hashlib
from collections.abc import Sequence

from .about import VERSION
from .digests import DIGITS
from .model import LanguageModel
from .model_digest import tokenizer_digest
from .plan import Measurement
from .score_measures import Measure

# Fields whose values are versions of what runs the model.
LIBRARIES = ("transformers", "torch")


def describe_model(model: LanguageModel) -> str:
    """Describe on one line what a `LanguageModel`'s scores of given tokens depend on."""
    return _line(_model_fields(model))


def describe_key_tokens(evaluator: LanguageModel, rule: str) -> str:
    """Describe on one line what decides which tokens are key.

    Args:
        evaluator: finds them.
        rule: how it tells them from others.
    """
    fields = {"tokenizer": tokenizer_digest(evaluator.tokenizer)} | _model_fields(evaluator)
    return _line({"key_tokens": rule} | fields)


def describe_measurement(
    model: LanguageModel,
    measurement: Measurement,
    words_given: bool,
    word_fields: dict[str, str] | None = None,
) -> dict[str, str | float]:
    """Write the signature of a `Measurement` under a `LanguageModel`, long and short; and its probe.

    In the spirit of sacrebleu's: `key:value` pairs joined by `|`.  The short form keeps the
    protocol and a digest of the whole line.

    Args:
        word_fields: how words are scored, where they are, and what the texts were before.
    """
    plan, separator = measurement.plan, measurement.separator
    join = plan.protocol.join if separator is None else separator
    is_string = separator is not None or join not in (None, "tokens")
    fields = _model_fields(model) | {
        "tokenizer": tokenizer_digest(model.tokenizer),
        "protocol": plan.protocol.name,
        "window": plan.max_length,
        "stride": plan.stride,
        "start": plan.start if plan.start_id is None else f"{plan.start}({plan.start_id})",
        "join": repr(join) if is_string else join,
        "words": "given" if words_given else "split",
    }
    if plan.carries != "nothing":
        fields["carry"] = plan.carries
    part_fields = {} if measurement.parts is None else measurement.parts.fields()
    fields |= part_fields | (word_fields or {})
    first = (
        *("model", "revision", "tokenizer", "protocol", "window", "stride", "carry", "start"),
        *("join", *part_fields, "words", *(word_fields or {})),
    )
    order = dict.fromkeys([*first, *fields])  # then what else the model says of itself
    line = _line({name: fields[name] for name in order if name in fields})
    digest = hashlib.sha256(line.encode("utf-8")).hexdigest()[:DIGITS]
    short = f"ppl|{plan.protocol.name}|L{plan.max_length}|S{plan.stride}|{digest}"
    return {"signature": line, "signature_short": short, "probe": model.probe}


def describe_all(
    models: Sequence[LanguageModel],
    measurements: Sequence[Measurement],
    measures: Sequence[Measure],
) -> str:
    """Describe on one line what processes that share work must have in common."""
    signatures = [
        describe_measurement(model, measurement, words_given=False)["signature"]
        for model in models
        for measurement in measurements
    ]
    return repr((signatures, [measure.key for measure in measures]))


def _model_fields(model: LanguageModel) -> dict[str, object]:
    """What a model says of itself, with the version of the metric before those of the libraries."""
    fields = model.signature_fields()
    libraries = {name: fields.pop(name) for name in LIBRARIES if name in fields}
    return fields | {"version": VERSION} | libraries


def _line(fields: dict[str, object]) -> str:
    return "|".join(f"{key}:{_shown(value)}" for key, value in fields.items())


def _shown(value: object) -> str:
    """A field's value on one line, without the sign that ends it."""
    return str(value).encode("unicode_escape").decode("ascii").replace("|", r"\x7c")
