"""The metric as the page uses it: loaded as any user does, one instance for each request."""

import re
import uuid
import warnings
from pathlib import Path

import evaluate

from .jobs import Job
from .limits import Limits, Refused
from .markup import count
from .models import LoadedModel
from .settings import Settings

METRIC = Path(__file__).resolve().parent.parent / "perplexity_sliding.py"
ALTERNATIVES = 5
# Tokens of a batch are lost when a request stops, and seen only when it ends: keep them few.
WINDOWS_AT_ONCE = 4
TRIAL_TEXT = "The quick brown fox jumps over the lazy dog."
# The metric's names for things, and the page's.
PAGE_NAMES = {
    r"`predictions` must": "The text must",
    r"`predictions`": "the text",
    r"`max_length`": "the window",
    r"max_length=": "a window of ",
    r"`stride`": "the stride",
    r"`add_start_token`": "the start token",
    r"`model` must": "The model must",
    r"`tokenizer` must": "The model's tokenizer must",
    r" with protocol=": " with the protocol ",
    r"`": "",
}


def new_metric() -> evaluate.Metric:
    """A fresh instance: one can serve one request at a time."""
    return evaluate.load(str(METRIC), keep_in_memory=True, experiment_id=uuid.uuid4().hex)


def find_window(model, tokenizer, limits: Limits) -> int:
    """The longest window of a model, by the metric's own rules, capped by what the page offers.

    Scoring a sentence also has the metric refuse a model that looks ahead or gives no numbers.
    """
    try:
        result = new_metric().compute(predictions=[TRIAL_TEXT], model=model, tokenizer=tokenizer)
    except (ValueError, TypeError) as error:
        raise Refused(in_page_words(error)) from error
    return min(int(re.search(r"\|window:(\d+)\|", result["signature"])[1]), limits.window)


def measure(
    loaded: LoadedModel, text: str, settings: Settings, callback, with_tokens: bool = True
) -> dict:
    """Compute the metric of one text.

    Args:
        settings: with window and stride filled in, see `Settings.for_model`.
        callback: see `Job.computing`.
        with_tokens: also return token scores.

    Returns:
        the metric's result, and "notes": sentences that the metric warned with.
    """
    arguments = settings.arguments()
    if with_tokens:
        arguments |= {"return_token_scores": True, "num_alternatives": ALTERNATIVES}
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
    return result | {"notes": notes}


def check_text(text: str, limits: Limits) -> str:
    """Return the text with line ends as the page has them, or refuse it."""
    if not isinstance(text, str) or not text.strip():
        raise Refused("There is no text yet. Write or paste some, upload a file or pick a sample.")
    if len(text) > limits.characters:
        raise Refused(
            f"The text has {len(text):,} characters, and this page takes {limits.characters:,} at "
            "most. Shorten it, or use the metric on your own machine, which takes any length."
        )
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise Refused("The text holds broken characters (half of a pair). Paste it anew.") from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def check_tokens(loaded: LoadedModel, text: str, limits: Limits, job: Job) -> int:
    """Count the text's tokens, refusing it if they are too many for the page."""
    job.check()
    ids = loaded.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    if len(ids) > limits.tokens:
        raise Refused(
            f"The text has {count(len(ids), 'token')} for {loaded.name}, and this page takes "
            f"{limits.tokens:,} at most. Shorten it, or use the metric on your own machine, which "
            "takes any length."
        )
    return len(ids)


def in_page_words(error: object) -> str:
    """The metric's message, with the page's names for things."""
    sentence = str(error)
    for pattern, words in PAGE_NAMES.items():
        sentence = re.sub(pattern, words, sentence)
    return sentence
