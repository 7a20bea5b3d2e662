"""Check and score texts with the metric; translate its messages into the page's terms."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from perplexity_sliding.errors import wording_of
from perplexity_sliding.results.totals import ratio_of_perplexities
from perplexity_sliding.views.text import count

from .intervals import without_thin
from .limits import Limits, Refused, whole_characters
from .metric import new_metric
from .settings import Settings

ALTERNATIVES = 5
# Tokens of a batch are lost when a request stops, and seen only when it ends: keep them few.
WINDOWS_AT_ONCE = 4
TRIAL_TEXT = "The quick brown fox jumps over the lazy dog."
# The page's names for arguments.
PAGE_NAMES = {
    "predictions": "the text",
    "contexts": "a context",
    "max_length": "the window",
    "stride": "the stride",
    "add_start_token": "the start token",
    "model": "the model",
    "tokenizer": "the model's tokenizer",
    "protocol": "the protocol",
    "boundary": "the edge between context and text",
    "context_lengths": "the lengths of context",
}
# The page's own advice on an argument at fault, where that is not an input of the page.
PAGE_ADVICE = {
    "boundary": "Begin the text with a space, and end the context without one.",
    "context_lengths": "Leave the context empty.",
}


@dataclass(frozen=True)
class LoadedModel:
    """A model and its tokenizer, ready to score.

    Attributes:
        name: what the visitor calls it.
        window: the longest window to offer.
        commit: of the Hub's repository; None for the bundled model.
    """

    name: str
    model: torch.nn.Module
    tokenizer: object
    window: int
    commit: str | None


def find_window(model, tokenizer, limits: Limits) -> int:
    """Find a model's longest window in tokens, by the metric's own rules and the page's limit.

    Scoring a sentence also has the metric refuse a model that looks ahead or gives no numbers.
    """
    metric = new_metric()
    try:
        opened = metric.open_model(model=model, tokenizer=tokenizer)
        metric.compute(predictions=[TRIAL_TEXT], model=model, tokenizer=tokenizer)
    except (ValueError, TypeError) as error:
        raise Refused(in_page_words(error)) from error
    return min(opened.limit.length or limits.window, limits.window)


def measure(
    loaded: LoadedModel, text: str, settings: Settings, callback, identify: bool = False
) -> dict:
    """Compute the metric of one text.

    Args:
        settings: with window and stride filled in, see `Settings.for_model`.
        callback: see `Job.computing`.
        identify: whether the signature has digests, which take longer than a short text.

    Returns:
        the metric's result with token scores, and "notes": sentences that the metric warned with.
    """
    asked = {
        "return_token_scores": [f"top{ALTERNATIVES}"],
        "identify": identify,
    }
    return _compute(loaded, text, callback, settings.arguments() | asked)


def measure_pair(
    loaded: LoadedModel, reference: LoadedModel, text: str, settings: Settings, callback
) -> tuple[dict, list[dict]]:
    """Compute the metric of one text with a reference.

    Returns:
        the result, as `measure` gives it, with "comparison"; and the comparison's `by_tokens_seen` in
        windows without overlap, in which tokens have little context too.  Those windows are among
        the others wherever the stride divides the window.
    """
    arguments = settings.arguments() | {
        "return_token_scores": True,
        "identify": True,
        "reference": {"model": reference.model, "tokenizer": reference.tokenizer},
    }
    if settings.stride is not None and settings.window % settings.stride == 0:
        arguments["stride"] = sorted({settings.stride, settings.window})
    result = _compute(loaded, text, callback, arguments)
    entries = result.get("measurements", [result])
    if "error" in entries[0]:
        raise Refused(in_page_words(entries[0]["error"]))
    by_context = entries[-1].get("comparison", {}).get("by_tokens_seen", [])
    return entries[0] | {"notes": result["notes"]}, by_context


def measure_several(loaded: LoadedModel, text: str, callback, **arguments) -> list[dict]:
    """Compute several settings together, which reads shared windows only once.

    Args:
        arguments: of the metric; one of them a list.

    Returns:
        an entry for each setting, as the metric's `measurements`, with "notes".
    """
    result = _compute(loaded, text, callback, arguments | {"return_token_scores": True})
    return [entry | {"notes": result["notes"]} for entry in result["measurements"]]


def measure_tools(
    loaded: LoadedModel, text: str, settings: Settings, protocols: Sequence[str], computing
) -> tuple[dict | None, list[dict]]:
    """Compute one protocol with its settings, and the others with the same window and their usual ones.

    Args:
        computing: returns a callback for a step that it names, see `Job.computing`.

    Returns:
        the result of the settings, None where they are refused; and an entry for each other protocol,
        or for all of them, as the metric's `measurements`, with the paired ratio to that result.
    """
    several = {"protocol": list(protocols), "max_length": settings.window}
    if settings.context:
        several["contexts"] = [settings.context]
    entries = measure_several(loaded, text, computing("Other tools"), return_totals=True, **several)
    place = protocols.index(settings.protocol)
    if "error" in entries[place]:
        return None, entries
    asked = {"return_token_scores": True, "return_totals": True}
    own = _compute(loaded, text, computing("Scoring"), settings.arguments() | asked)
    others = [entry for entry in entries if entry is not entries[place]]
    for entry in others:
        if "error" not in entry:
            ratio = ratio_of_perplexities(entry["totals"], own["totals"])
            entry["ratio_to_first"] = without_thin(ratio)
    return own, others


def measure_contexts(
    loaded: LoadedModel, text: str, settings: Settings, callback, num_tokens: int
) -> list[dict]:
    """Compute the perplexity of the same tokens with increasing context, as `by_context_length`.

    In a text that one window holds, half of the tokens at least have each of the contexts.
    """
    arguments = settings.arguments() | {"context_lengths": "doubling"}
    del arguments["stride"]  # half of the shortest length
    if num_tokens <= settings.window:
        lengths = [2**power for power in range(1, num_tokens.bit_length() - 1)]
        if len(lengths) < 2:
            return []
        del arguments["max_length"]
        arguments["context_lengths"] = lengths
    return _compute(loaded, text, callback, arguments)["by_context_length"]


def _compute(loaded: LoadedModel, text: str, callback, arguments: dict) -> dict:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = new_metric().compute(
                predictions=[text],
                model=loaded.model,
                tokenizer=loaded.tokenizer,
                batch_size=WINDOWS_AT_ONCE,
                callback=callback,
                **arguments,
            )
        except (ValueError, TypeError, MemoryError) as error:
            raise Refused(in_page_words(error)) from error
    notes = [in_page_words(w.message) for w in caught if issubclass(w.category, UserWarning)]
    return without_thin(result) | {"notes": notes}


def check_text(text: str, limits: Limits) -> str:
    """Return the text, or refuse it."""
    if not isinstance(text, str) or not text.strip():
        raise Refused("There is no text yet. Write or paste some, or pick a sample.")
    if len(text) > limits.characters:
        raise Refused(
            f"The text has {len(text):,} characters, and this page takes {limits.characters:,} at "
            "most. Shorten it, or use the metric on your own machine, which takes any length."
        )
    return whole_characters(text, "text")


def check_tokens(loaded: LoadedModel, text: str, limits: Limits) -> None:
    """Refuse a text that has too many tokens for the page."""
    ids = loaded.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    if len(ids) > limits.tokens:
        raise Refused(
            f"The text has {count(len(ids), 'token')} for {loaded.name}, and this page takes "
            f"{limits.tokens:,} at most. Shorten it, or use the metric on your own machine, which "
            "takes any length."
        )


def in_page_words(error: object) -> str:
    """Rewrite the metric's error, warning or refusal in the page's terms."""
    wording = wording_of(error)
    others = {"positions": ()}  # there is one text
    if wording.argument in PAGE_ADVICE:
        others["advice"] = PAGE_ADVICE[wording.argument]
    said = wording.said(page_name, **others)
    return said[:1].upper() + said[1:]


def page_name(argument: str, value: str | None) -> str:
    """Return the page's name of an argument or a setting."""
    name = PAGE_NAMES.get(argument, argument.replace("_", " "))
    if value is None:
        return name
    bare = value.strip("'")
    return f"a window of {bare}" if argument == "max_length" else f"{name} {bare}"
