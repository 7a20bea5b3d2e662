"""What is served: two public functions for programs and language models, and the page's own.

The docstrings of the public ones are what a caller sees; gradio takes one line for each argument.
The page's own are generators: they tell how far they are, and gradio closes them when the visitor
goes away or asks for something newer.
"""

import json
import logging
import traceback
from collections.abc import Callable

import gradio as gr
from gradio.utils import get_function_description

from perplexity_sliding.views.comparison import comparison_view
from perplexity_sliding.views.text import number

from .answers import score_answer
from .calls import python_call, shell_call
from .intervals import FEWEST_PARTS
from .jobs import Job, OverBudget, Stopped, Update, follow
from .limits import FAULT, Refused
from .memory_view import change_by_context, memory_view
from .models import BUNDLED, ROUNDED
from .protocols import guide
from .service import Compared, Scored, Service
from .settings import Settings
from .sharing import citation, digest, plain, sentence, token_table, word_table
from .tools_view import tools_view

TOO_LITTLE = "too little text to tell"  # the metric's verdict without an interval

logger = logging.getLogger(__name__)


def make_score(service: Service) -> Callable:
    def score(
        text: str,
        model: str = BUNDLED,
        window: int | None = None,
        stride: int | None = None,
        start_token: str = "automatic",
        protocol: str = "sliding",
        tokens: bool = False,
        context: str = "",
        words: bool = False,
        request: gr.Request = None,
    ) -> dict:
        """Compute the perplexity of a text under a causal language model, with a sliding window.

        Args:
            text: the text to score, up to 20,000 tokens, as it is.
            model: "demo_model", or a small public model on the Hugging Face Hub ("owner/name").
            window: tokens that the model reads at once; the model's limit (up to 2048) by default.
            stride: tokens from one window to the next, at most the window; half of it by default.
            start_token: "automatic", "once" before the text, "every" window, or "none".
            protocol: whose windows to use, such as "lm-eval" or "llama.cpp"; "sliding" is the metric's.
            tokens: also return each token with its place, nll_nats, nll_bits, rank and context length.
            context: what is read directly before the text and not scored.
            words: also return each word with its place, surprisal (bits), entropy and context length.

        Returns:
            JSON: perplexity, interval, signature, digest of the text, and the calls that repeat it.
        """
        settings = read_arguments(model, window, stride, start_token, protocol, context, words)
        scored = _run(service, lambda job: service.score(text, settings, job, identify=True))
        return answer(request, score_summary(scored, tokens))

    return score


def make_compare(service: Service) -> Callable:
    def compare(
        text: str,
        model: str = ROUNDED,
        reference_model: str = BUNDLED,
        window: int | None = None,
        stride: int | None = None,
        tokens: bool = False,
        request: gr.Request = None,
    ) -> dict:
        """Compare a model with a reference on a text: worse or better, by how much, and is it chance.

        Args:
            text: the text, up to 20,000 tokens.
            model: "demo_model-4bit" (the bundled model, rounded), or a small public model on the Hub.
            reference_model: what it is compared with: "demo_model", or another model ("owner/name").
            window: tokens that the models read at once; the shorter of their limits by default.
            stride: tokens from one window to the next, at most the window; half of it by default.
            tokens: also return each token with its place, nll and reference_nll (nats), kl and tops.

        Returns:
            JSON: what the metric says of the model (perplexity, signature, …), the calls that repeat
            it, and comparison: verdict and summary, perplexity_ratio (over 1: the model is worse)
            with its interval and p-value, kl, kl_percentiles, same_top, token_agreement,
            right_to_wrong, wrong_to_right, by_confidence, by_tokens_seen, worst_tokens, and more. Where
            the tokenizers differ, compared is "bytes": bits_per_byte_change, byte_perplexity_ratio.
        """
        settings = read_arguments(model, window, stride)
        reference = read_name("reference_model", reference_model)
        compared = _run(service, lambda job: service.compare(text, settings, reference, job))
        return answer(request, compare_summary(compared, tokens))

    return compare


def add_endpoint(page: gr.Blocks, function: Callable, **options) -> None:
    """Publish a function, with the descriptions of its arguments from the docstring.

    Gradio gives them to language models only; here its documentation and its clients see them too.
    """
    published = gr.api(function, api_name=function.__name__, **options)
    _, words, _ = get_function_description(function)
    names = [name for name in words if name != "request"]
    for name, component in zip(names, page.fns[published["id"]].inputs, strict=True):
        component.label = name
        component._api_info |= {"description": words[name], "additional_description": words[name]}


def read_arguments(
    model: str,
    window: int | None = None,
    stride: int | None = None,
    start_token: str = "automatic",
    protocol: str = "sliding",
    context: str = "",
    words: bool = False,
) -> Settings:
    """Read settings from a caller's arguments; refuse those that would be dropped.

    Raises:
        gr.Error: with a sentence for the caller.
    """
    name = read_name("model", model)
    for argument, value in (("protocol", protocol), ("start_token", start_token)):
        if not isinstance(value, str):
            raise _error(f"`{argument}` must be a name, in quotation marks, not {value!r}.")
    known = guide(protocol)
    if stride is not None and not known.stride:
        raise _error(
            f"The protocol {protocol} has no `stride` to choose: its tool has one of its own. Leave "
            "it out."
        )
    if start_token != "automatic" and start_token not in known.starts:
        choices = ", ".join(known.starts) or "automatic"
        raise _error(
            f"The protocol {protocol} has no `start_token` “{start_token}”. Choose one of: "
            f"{choices}."
        )
    if words and not known.words:
        raise _error(f"The protocol {protocol} joins all texts, so that `words` must be left out.")
    return Settings(name, window, stride, start_token, protocol, context or "", words)


def read_name(argument: str, model: str) -> str:
    """Return the name of a model; refuse anything else, naming the argument."""
    if not isinstance(model, str) or not model.strip():
        raise _error(
            f'`{argument}` must be the name of a model, such as "{BUNDLED}", not {model!r}.'
        )
    return model.strip()


def score_summary(scored: Scored, with_tokens: bool = False) -> dict:
    """Return the metric's result, its citation and calls to reproduce it, as plain values."""
    result = _without_tokens(scored) | {
        "sentence": sentence(scored),
        "python": python_call(scored),
        "shell": shell_call(scored),
    }
    if with_tokens:
        result["tokens"] = token_table(scored)
    if scored.settings.words:
        result["words"] = word_table(scored)
    return plain(result)


def compare_summary(compared: Compared, with_tokens: bool = False) -> dict:
    """Return the metric's result with its comparison, and calls to reproduce it, as plain values."""
    scored, reference = compared.scored, compared.reference
    result = _without_tokens(scored) | {
        "python": python_call(scored, reference),
        "shell": shell_call(scored, reference),
    }
    if compared.remark is not None:
        result["notes"] = [*result["notes"], compared.remark]
    if with_tokens:
        result["tokens"] = comparison_table(compared)
    return plain(result)


def comparison_table(compared: Compared) -> list[dict]:
    """Return one row for each token, or for each piece of text that both models cut and score."""
    scores = compared.pair.scores
    columns = {name: column for name, column in scores.items() if name != "windows"}
    offsets = [offset or (None, None) for offset in columns.pop("offsets")]
    names = ["token" if name == "tokens" else name for name in columns]
    return [
        {"start": start, "end": end, **dict(zip(names, row))}
        for (start, end), *row in zip(offsets, *columns.values())
    ]


def _without_tokens(scored: Scored) -> dict:
    by_token = ("token_scores", "word_scores", "piece_scores")
    result = {key: value for key, value in scored.result.items() if key not in by_token}
    return result | {"text_sha256": digest(scored.text)}


def answer(request: gr.Request, result: dict) -> dict | str:
    """Return the result, to a language model as JSON: gradio would write it as a Python dict."""
    if request.headers.get("x-gradio-user") == "mcp":
        return json.dumps(result, ensure_ascii=False, allow_nan=False)
    return result


def _run(service: Service, work: Callable):
    try:
        return work(Job(service.limits.seconds))
    except (Refused, OverBudget) as refusal:
        raise _error(str(refusal)) from refusal
    except Exception as error:
        log_fault(error)
        raise _error(FAULT) from None


def _error(sentence: str) -> gr.Error:
    return gr.Error(sentence, print_exception=False)


def log_fault(error: BaseException) -> None:
    """Log the class of an error and the lines of code; never the message, which may quote a visitor."""
    frames = "".join(traceback.format_tb(error.__traceback__))
    logger.error("A request failed: %s at\n%s", type(error).__name__, frames)


# The page's own


def page_calls(service: Service) -> dict[str, Callable]:
    """Return the functions of the page by name; each takes what the page asks and yields what it shows."""

    def score(asked: dict, job: Job) -> dict:
        scored = service.score(asked.get("text"), read_settings(asked), job, clip=True)
        return score_answer(scored, service.landmarks(scored.settings.model, job))

    def memory(asked: dict, job: Job) -> dict:
        return {"html": memory_view(service.memory(asked.get("text"), read_settings(asked), job))}

    def tools(asked: dict, job: Job) -> dict:
        sweep = service.every_protocol(asked.get("text"), read_settings(asked), job)
        return {"html": tools_view(sweep)}

    def models(asked: dict, job: Job) -> dict:
        settings = read_settings(asked | {"model": asked.get("other")})
        reference = read_settings(asked).model
        compared = service.compare(asked.get("text"), settings, reference, job, clip=True)
        scored, comparison = compared.scored, compared.pair.comparison
        needed, there = FEWEST_PARTS * scored.window, len(scored.tokens["tokens"])
        if comparison["verdict"] == TOO_LITTLE and there < needed:
            comparison["summary"] = (
                "This text is too short to tell which of the two is better. That takes about "
                f"{needed:,} tokens, {number(needed / there, 2)} times as many as it has."
            )
        return {"html": comparison_view(compared.pair) + change_by_context(compared)}

    def cite(asked: dict, job: Job) -> dict:
        settings = read_settings(asked)
        return citation(service.score(asked.get("text"), settings, job, clip=True, identify=True))

    return {work.__name__: streamed(service, work) for work in (score, memory, tools, models, cite)}


def streamed(service: Service, work: Callable[[dict, Job], dict]) -> Callable:
    """Make a function that yields progress, and last {"result": …} or {"refused": a sentence}."""

    def run(asked: dict) -> dict:  # of each that it yields, which gradio wants to know
        job = Job(service.limits.seconds)
        try:
            for told in follow(job, lambda job: work(asked, job)):
                if isinstance(told, Update):
                    yield {"said": told.sentence, "share": told.share}
                else:
                    yield {"result": told}
        except (Refused, OverBudget) as refusal:
            yield {"refused": str(refusal)}
        except Stopped:
            return
        except Exception as error:
            log_fault(error)
            yield {"refused": FAULT}

    return run


def read_settings(asked: dict) -> Settings:
    """Read the settings from what the page asks; `Service` refuses what makes no sense."""
    protocol = str(asked.get("protocol") or Settings.protocol)
    return Settings(
        str(asked.get("model") or BUNDLED).strip(),
        asked.get("window"),
        asked.get("stride") if guide(protocol).stride else None,
        str(asked.get("start") or Settings.start),
        protocol,
        asked.get("context") or "",
    )
