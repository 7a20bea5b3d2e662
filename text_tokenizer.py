"""What is asked of a tokenizer before it reads a text: that it is one, and cuts a text only one way."""

import numpy as np
from transformers import PreTrainedTokenizerBase

from .text_tokenization import tokenize

# Long words, which have many ways to be cut; a tokenizer that draws them cuts them alike by chance
# about never.
TRIAL = "Incomprehensibilities notwithstanding, counterrevolutionaries mischaracterized it. " * 4
TRIALS = 4


def check_tokenizer(tokenizer: object, argument: str = "tokenizer") -> None:
    """Refuse what is not a tokenizer, or one of which no number could be repeated.

    Raises:
        TypeError: it is something else.
        ValueError: it draws at random, or has a part that nothing can identify.
    """
    if not callable(tokenizer) or not hasattr(tokenizer, "convert_ids_to_tokens"):
        raise TypeError(
            f"`{argument}` must be a transformers tokenizer, got {type(tokenizer).__name__}."
        )
    check_repeatable(tokenizer, f"`{argument}`")


def check_repeatable(tokenizer: PreTrainedTokenizerBase, name: str) -> None:
    """Refuse a tokenizer of which no number could be repeated.

    Args:
        name: what an error calls it.

    Raises:
        ValueError: it draws at random, or has a part that nothing can identify.
    """
    setting = random_setting(tokenizer)
    if setting is None and not cuts_alike(tokenizer):
        setting = f"a {type(tokenizer).__name__} that cut one text in two ways"
    if setting is not None:
        raise ValueError(
            f"{name} must cut a text in the same way every time, got {setting}: it draws at random, "
            "as in training, and no score could be repeated. Switch that off."
        )
    part = part_in_python(tokenizer)
    if part is not None:
        raise ValueError(
            f"{name} must be made of the parts that the tokenizers library has, got a {part} in "
            "Python, whose code no signature could identify. Use one of the library's, or a "
            "subclass of PreTrainedTokenizer."
        )


def random_setting(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """Describe the setting that makes a tokenizer draw at random; None where there is none."""
    model = getattr(getattr(tokenizer, "backend_tokenizer", None), "model", None)
    for setting in ("dropout", "alpha"):  # of byte-pair encoding, and of unigrams
        value = getattr(model, setting, None)
        if value:
            return f"`backend_tokenizer.model.{setting}`={value:.3g}"
    sampling = getattr(tokenizer, "sp_model_kwargs", None) or {}
    return "`sp_model_kwargs` with enable_sampling" if sampling.get("enable_sampling") else None


def cuts_alike(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return whether a tokenizer cuts a made-up text in the same way several times."""
    first, *others = tokenize(tokenizer, [TRIAL] * TRIALS)
    return all(np.array_equal(other.ids, first.ids) for other in others)


def part_in_python(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """Name a part of a fast tokenizer that is code in Python; None where there is none."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    for name in ("normalizer", "pre_tokenizer", "decoder"):
        part = getattr(backend, name, None)
        try:
            if part is not None:
                part.__getstate__()
        except Exception:  # the library has no other kind
            return name.replace("_", "-")
    return None
