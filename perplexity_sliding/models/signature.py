"""The signature: on one line, whatever a number depends on.

It covers what a forward pass depends on, as far as a description can, and nothing that only says
where a model came from.  What was put over a model's code, where that is cheap to see, is said in it:
`+modified`.  Beside it stands the probe, a measured number: the model's mean nll of a made-up text.
Equal signatures and equal probes mean equal numbers.
"""

import hashlib

from ..about import VERSION
from ..digests import DIGITS
from .interface import ScoredModel

# Fields whose values are versions of what runs the model.
LIBRARIES = ("transformers", "torch")


def describe_model(model: ScoredModel) -> str:
    """Describe on one line what a model's scores of given tokens depend on."""
    return _line(_model_fields(model))


def describe_key_tokens(evaluator: ScoredModel, rule: str) -> str:
    """Describe on one line what decides which tokens are key.

    Args:
        evaluator: finds them.
        rule: how it tells them from others.
    """
    fields = {"tokenizer": evaluator.tokenizer_digest} | _model_fields(evaluator)
    return _line({"key_tokens": rule} | fields)


def describe_measurement(
    model: ScoredModel,
    measured: dict[str, object],
    length: int,
    words_given: bool,
    word_fields: dict[str, str] | None = None,
) -> dict[str, object]:
    """Write the signature of a measurement under a model, long and short; and its probes.

    In the spirit of sacrebleu's: `key:value` pairs joined by `|`.  The short form keeps the
    protocol and a digest of the whole line.

    Args:
        measured: what the measurement says of itself, see `Measurement.signature_fields`.
        length: tokens that its longest forward pass reads.
        word_fields: how words are scored, where they are, and what the texts were before.
    """
    of_words = {"words": "given" if words_given else "split"} | (word_fields or {})
    of_tokenizer = {"tokenizer": model.tokenizer_digest}
    fields = _model_fields(model) | of_tokenizer | measured | of_words
    first = ("model", "revision", "tokenizer", *measured, *of_words)
    order = dict.fromkeys([*first, *fields])  # then what else the model says of itself
    line = _line({name: fields[name] for name in order if name in fields})
    digest = hashlib.sha256(line.encode("utf-8")).hexdigest()[:DIGITS]
    short = f"ppl|{measured['protocol']}|L{measured['window']}|S{measured['stride']}|{digest}"
    return {
        "signature": line,
        "signature_short": short,
        "probe": model.probe,
        "long_probe": model.long_probe(length),
    }


def _model_fields(model: ScoredModel) -> dict[str, object]:
    """Return what a model says of itself, the metric's version before those of the libraries."""
    fields = model.signature_fields()
    libraries = {name: fields.pop(name) for name in LIBRARIES if name in fields}
    return fields | {"version": VERSION} | libraries


def _line(fields: dict[str, object]) -> str:
    return "|".join(f"{key}:{_shown(value)}" for key, value in fields.items())


def _shown(value: object) -> str:
    """Write a field's value on one line, without the sign that ends it."""
    return str(value).encode("unicode_escape").decode("ascii").replace("|", r"\x7c")
