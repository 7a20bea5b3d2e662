"""The public functions: what programs and language models can call."""

from collections.abc import Callable

import gradio as gr

from .calls import python_call, shell_call
from .jobs import Job, OverBudget
from .limits import Refused
from .models import BUNDLED
from .service import Scored, Service
from .settings import Settings


def make_score(service: Service) -> Callable:
    # The docstring is what clients see; gradio takes one line for each argument.
    def score(
        text: str,
        model: str = BUNDLED,
        window: int | None = None,
        stride: int | None = None,
        start_token: str = "automatic",
        protocol: str = "sliding",
        request: gr.Request = None,
    ) -> dict:
        """Perplexity of a text under a causal language model, with a sliding window.

        Args:
            text: the text to score, up to 20,000 tokens.
            model: "demo_model", or a small public model on the Hugging Face Hub ("owner/name").
            window: tokens that the model reads at once; the model's limit (up to 2048) by default.
            stride: tokens from one window to the next, at most the window; half of it by default.
            start_token: "automatic", "once" before the text, "every" window, or "none".
            protocol: whose windows to use, such as "lm-eval" or "llama.cpp"; "sliding" is the metric's.

        Returns:
            The metric's result: perplexity, its interval, signature, and the calls that repeat it.
        """
        settings = Settings(model.strip(), window, stride, start_token, protocol)
        scored = _run(service, request, lambda job: service.score(text, settings, job))
        return score_summary(scored)

    return score


def make_compare(service: Service) -> Callable:
    def compare(
        text: str,
        first_model: str,
        second_model: str,
        window: int | None = None,
        stride: int | None = None,
        request: gr.Request = None,
    ) -> dict:
        """Compare how well two language models predict the same text.

        Args:
            text: the text, up to 20,000 tokens.
            first_model: "demo_model", or a small public model on the Hugging Face Hub.
            second_model: another one.
            window: tokens that the models read at once; the shorter of their limits by default.
            stride: tokens from one window to the next; half the window by default.

        Returns:
            difference (bits per byte that the second saves), its interval, and both results.
        """
        settings = Settings(first_model.strip(), window, stride)
        compared = _run(
            service,
            request,
            lambda job: service.compare(text, settings, second_model.strip(), job),
        )
        first, second = map(score_summary, compared.scored)
        interval = compared.difference.interval
        return {
            "difference": compared.difference.mean,
            "interval": interval and list(interval),
            "first": first,
            "second": second,
        }

    return compare


def score_summary(scored: Scored) -> dict:
    """The metric's result without the tokens, and the calls that repeat it."""
    result = {key: value for key, value in scored.result.items() if key != "token_scores"}
    return result | {"python": python_call(scored), "shell": shell_call(scored)}


def visitor(request: gr.Request) -> str:
    """Who calls: the address, as a proxy such as that of Spaces tells it.

    It shares the machine fairly and protects nothing: whoever forges it still meets a line that is
    full at some point.
    """
    forwarded = request.headers.get("x-forwarded-for", "")
    return forwarded.split(",")[0].strip() or request.client.host


def _run(service: Service, request: gr.Request, work: Callable):
    try:
        return work(Job(service.limits.seconds, visitor(request)))
    except (Refused, OverBudget) as refusal:
        raise gr.Error(str(refusal), print_exception=False) from refusal
