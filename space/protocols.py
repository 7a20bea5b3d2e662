"""What the page says about each protocol of the metric, and which of its settings it has.

The metric decides what a protocol does; this is a student's guide to it, which the tests hold
against the metric's own refusals.
"""

from dataclasses import dataclass

# What the page calls the values of `add_start_token`.
START_CHOICES = {"automatic": True, "once": "once", "every": "every", "none": False}
ANY_START = tuple(START_CHOICES)
# A usual stride that is as long as any window.
WHOLE_WINDOW = 10**9


@dataclass(frozen=True)
class Guide:
    """One protocol as the page presents it.

    Attributes:
        tool: whose number it is.
        idea: one sentence on how its windows differ.
        stride: whether the stride can be chosen.
        usual_stride: the tool's own stride, where it is not half a window.
        starts: the choices for the start token; empty where there is none.
        starts_every_window: whether a start token takes a place in each window, so that a stride
            of a whole window would skip a token.
    """

    tool: str
    idea: str
    stride: bool = False
    usual_stride: int | None = None
    starts: tuple[str, ...] = ()
    starts_every_window: bool = False


GUIDES = {
    "sliding": Guide(
        "this metric",
        "Windows overlap, and every token is scored exactly once, with as much context as the "
        "stride leaves it.",
        stride=True,
        starts=ANY_START,
    ),
    "transformers-docs": Guide(
        "Hugging Face guide (2022–2024)",
        "The same windows, but the average is taken over windows instead of tokens, so a short "
        "last window counts as much as a full one.",
        stride=True,
    ),
    "transformers-docs-weighted": Guide(
        "Hugging Face guide (now)",
        "The same windows; each window's average is weighted by its number of tokens, less one.",
        stride=True,
    ),
    "stock": Guide(
        "evaluate's own perplexity",
        "Only the first window is read; the rest of the text is cut off.",
        starts=("automatic", "none"),
    ),
    "lm-eval": Guide(
        "lm-evaluation-harness",
        "Windows do not overlap, so the first tokens of each have hardly any context; the last "
        "window is moved back to be full.",
    ),
    "paloma": Guide(
        "Paloma, OLMo-Eval",
        "As lm-eval, but the text always begins with the end-of-text token.",
    ),
    "llama.cpp": Guide(
        "llama.cpp perplexity",
        "Windows do not overlap, and only the second half of each is scored; what does not fill a "
        "window is dropped.",
    ),
    "gptq": Guide(
        "GPTQ and AWQ papers",
        "Windows do not overlap, the first token of each is not scored, and what does not fill a "
        "window is dropped.",
    ),
    "exllamav2": Guide(
        "ExLlamaV2",
        "Windows are at most 512 tokens apart; what does not fill a window is dropped.",
    ),
    "megatron": Guide(
        "Megatron-LM",
        "Windows are 32 tokens apart unless you choose otherwise, so nearly every token has a full "
        "context.",
        stride=True,
        usual_stride=32,
    ),
    "mlx-lm": Guide(
        "mlx-lm",
        "The text is cut into rows of at most 512 tokens; the first token of each is not scored "
        "and an incomplete row is dropped.",
    ),
    "run-clm": Guide(
        "transformers run_clm.py, Trainer",
        "The text is cut into blocks; the first token of each is not scored and an incomplete "
        "block is dropped.",
    ),
    "yarn": Guide(
        "YaRN",
        "Windows are 256 tokens apart unless you choose otherwise, and the average is taken over "
        "windows instead of tokens.",
        stride=True,
        usual_stride=256,
        starts_every_window=True,
    ),
    "yarn-truncated": Guide(
        "YaRN --truncate",
        "Only the first window is read: an average over all lengths of context up to the window's.",
    ),
    "longlora": Guide(
        "LongLoRA",
        "Windows are 256 tokens apart unless you choose otherwise, and each scores all of its "
        "tokens, so that most count many times.",
        stride=True,
        usual_stride=256,
    ),
    "fairseq": Guide(
        "fairseq",
        "Every line is followed by the end-of-text token; windows score their new tokens and begin "
        "with as many as a stride.",
        stride=True,
        usual_stride=WHOLE_WINDOW,
    ),
}


def guide(protocol: str) -> Guide:
    """The guide to a protocol, or an empty one for a protocol that is new to this page."""
    return GUIDES.get(protocol, Guide(protocol, ""))
