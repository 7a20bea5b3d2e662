"""The protocols: how tools measure perplexity, one row each.

The perplexities that tools report for the same model and text differ because their windows, start
tokens and averages do.  Every one of them is a row of `PROTOCOLS`; to add one, write its row, and
an attribute of `Protocol` for what no other tool does.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Start = Literal["none", "once", "every", "replace"]
Aggregate = Literal["tokens", "window means", "guide weights", "texts", "capped"]
ToolError = Literal["population", "sample"]

# How lm-evaluation-harness and Megatron-LM turn WikiText's word-level form into prose, both by the
# same list, applied in this order.  Its bugs are kept: the second step only matches
# between slashes, and quotes are paired from the first one on, across clitics and lines.
WIKITEXT_STEPS = (
    *[("s '", "s'"), ("/' [0-9]/", "/'[0-9]/")],
    *[(f" @{re.escape(mark)}@ ", mark) for mark in "-,."],
    *[(f" {re.escape(mark)} ", f"{mark} ") for mark in ":;.!?,"],
    (r"\(\s*([^\)]*?)\s*\)", r"(\1)"),
    (r"\[\s*([^\]]*?)\s*\]", r"[\1]"),
    (r"\{\s*([^}]*?)\s*\}", r"{\1}"),
    *[(rf"{mark}\s*([^{mark}]*?)\s*{mark}", rf"{mark}\1{mark}") for mark in "\"'"],
    *[("= " * (count - 1) + "=", "=" * count) for count in (4, 3, 2)],
    *[(" ° ", "°"), (" \n", "\n"), ("\n ", "\n"), (" N ", " 1 "), (" 's", "'s")],
)


def count_words(text: str) -> int:
    return len(text.split())


def count_words_and_ends(text: str) -> int:
    """Count as lm-evaluation-harness: white space at the start or end adds an empty word."""
    return len(re.split(r"\s+", text))


def count_words_and_lines(text: str) -> int:
    """Count as Megatron-LM: split at single spaces, so that WikiText's line ends are words."""
    return len(text.strip().split(" "))


def detokenize_wikitext(text: str) -> str:
    """Convert WikiText's word-level form to prose like lm-evaluation-harness and Megatron-LM."""
    for pattern, written in WIKITEXT_STEPS:
        text = re.sub(pattern, written, text)
    return text


@dataclass(frozen=True)
class Protocol:
    """One tool's way to measure perplexity.

    Attributes:
        name: the value of `protocol=`.
        description: one sentence on what it does, for help texts and the Space.
        max_length: tokens in a window; None for the model's own limit, which also caps a number
            given here; "tokenizer or 1024" for the tokenizer's, or 1024 if the model accepts less
            than that.
        stride: distance between the first tokens of two windows; None for `max_length`, "half" for
            half of it.
        encoding: "plain" encodes the text alone, "default" with the special tokens that the
            tokenizer adds by default, "default once" so unless the text begins with the start
            token, "default ended" so with the end-of-text token unless the text has it last,
            "lines" each line alone and the end-of-text token after it; added tokens are part of
            the text.
        start: the start token: "chosen" by `add_start_token`, "once" before the text, "every if
            any" at the head of every window if the tokenizer has one, "replace" for the first
            token of every window if the tokenizer adds one by default, or "none".
        start_is: which token that is.
        start_choices: the values of `add_start_token` that the tool supports.
        drops_written_start: whether a start token at the start of a text counts as the start
            token; other tools score it as text.
        scores_next: whether a window also scores the token after it, from its last row, and so
            reads `max_length` tokens instead of `max_length - 1`; "without overlap": if windows
            share none.
        feeds_last: whether the tool also feeds a window's last token, from which it scores
            nothing; that shows where scores depend on the length of a pass.
        scores: "new" tokens, which no earlier window has scored, the "second half" of each window,
            or "all" tokens of each.
        first_window: whether the first window is "full", or at most a "stride", after which
            windows grow to their full length.
        last: treatment of a last window that the text does not fill: it stays "short", is moved
            left to "full" context, or is "dropped"; with "popped" also the last one that has a
            token after it, and with "cut" all but the first.
        join: None scores every text alone; a string joins the texts with it first; "tokens" joins
            their token ids.
        texts_joined: number of texts per joined stream; None for all.
        aggregate: how token scores become the perplexity: over all "tokens", the mean of "window
            means", that mean as the guide weights it, of the "texts", or over all tokens with
            Megatron's "capped" mean.
        error: the ± that the tool prints: "population" (llama.cpp), "sample" (mlx-lm) or None.
        min_windows: minimum number of windows of a text that the tool accepts.
        pairs: how a text is separated from its context: "by characters", in the windows of both
            together; "by lengths", after the number of tokens of the context alone, in one window
            that ends with the text; None if contexts are not supported.
        supported_arguments: arguments with a counterpart in the tool.
        count_words: how the tool counts the words of a text.
        detokenizes: whether the tool converts WikiText's word-level form to prose.

    The types list the values that the project supports; `mypy` checks the rows against them.
    """

    name: str
    source: str
    description: str
    max_length: int | Literal["tokenizer or 1024"] | None = None
    stride: int | Literal["half"] | None = None
    encoding: Literal["plain", "default", "default once", "default ended", "lines"] = "plain"
    start: Literal["none", "chosen", "once", "every if any", "replace"] = "none"
    start_is: Literal["bos", "bos or eos", "eos"] = "bos"
    start_choices: tuple[Literal["once", "every"] | bool, ...] = (True, False, "once", "every")
    drops_written_start: bool = False
    scores_next: Literal["always", "never", "without overlap"] = "never"
    feeds_last: bool = False
    scores: Literal["new", "second half", "all"] = "new"
    first_window: Literal["full", "stride"] = "full"
    last: Literal["short", "full", "dropped", "popped", "cut"] = "short"
    join: str | None = None
    texts_joined: int | None = None
    aggregate: Aggregate = "tokens"
    error: ToolError | None = None
    min_windows: int = 1
    pairs: Literal["by characters", "by lengths"] | None = None
    supported_arguments: tuple[
        Literal["max_length", "stride", "add_start_token", "context_lengths", "carry"],
        ...,
    ] = ("max_length",)
    count_words: Callable = count_words
    detokenizes: bool = False

    def usual_stride(self, max_length: int, starts_every_window: bool = False) -> int:
        """Return the default stride of the tool, in tokens."""
        if self.stride == "half":
            return max(1, max_length // 2)
        places = max_length - starts_every_window
        return min(self.stride or places, places)

    @property
    def scores_each_text(self) -> bool:
        """Whether every text is scored on its own, so that a corpus may come in shards."""
        return self.join is None


DEFAULT_PROTOCOL = "sliding"
ROWS = (
    Protocol(
        "sliding",
        source="this metric",
        description=(
            "Windows overlap where the stride is shorter, and every token is scored exactly once, with "
            "as much context as the stride leaves it."
        ),
        stride="half",
        start="chosen",
        drops_written_start=True,
        scores_next="without overlap",
        pairs="by characters",
        supported_arguments=(
            *("max_length", "stride", "add_start_token", "context_lengths", "carry"),
        ),
    ),
    Protocol(
        "transformers-docs",
        source="transformers guide, mean of window means (2022-2024)",
        description="The same windows, averaged: a short last one counts as much as a full one.",
        feeds_last=True,
        stride="half",
        encoding="default",
        join="\n\n",
        aggregate="window means",
        supported_arguments=("max_length", "stride"),
    ),
    Protocol(
        "transformers-docs-weighted",
        source="transformers guide, present form",
        description="The same windows, their averages weighted by their tokens less one.",
        feeds_last=True,
        stride="half",
        encoding="default",
        join="\n\n",
        aggregate="guide weights",
        supported_arguments=("max_length", "stride"),
    ),
    Protocol(
        "stock",
        source="evaluate's own perplexity metric",
        description="Only the first window of each text is read; the rest is cut off.",
        feeds_last=True,
        start="chosen",
        start_choices=(True, False),
        last="cut",
        aggregate="texts",
        supported_arguments=("max_length", "add_start_token"),
    ),
    Protocol(
        "lm-eval",
        source="lm-evaluation-harness, loglikelihood_rolling",
        description=(
            "Windows do not overlap, so the first tokens of each have hardly any context; the last "
            "window is moved back to be full."
        ),
        encoding="default once",
        start="once",
        start_is="bos or eos",
        scores_next="always",
        last="full",
        count_words=count_words_and_ends,
        detokenizes=True,
        pairs="by lengths",
    ),
    Protocol(
        "paloma",
        source="Paloma and OLMo-Eval",
        description="As lm-eval, with at most 2048 tokens, after the end-of-text token.",
        max_length=2048,
        start="once",
        start_is="eos",
        scores_next="always",
        last="full",
    ),
    Protocol(
        "llama.cpp",
        source="llama.cpp, llama-perplexity",
        description="Windows do not overlap; the second half of full ones is scored.",
        feeds_last=True,
        max_length=512,
        encoding="default",
        start="replace",
        scores="second half",
        last="dropped",
        join="\n\n",
        error="population",
        min_windows=2,
    ),
    Protocol(
        "gptq",
        source="GPTQ and AWQ papers",
        description="Windows do not overlap; all but the first token of full ones is scored.",
        feeds_last=True,
        max_length=2048,
        encoding="default",
        last="dropped",
        join="\n\n",
    ),
    Protocol(
        "exllamav2",
        source="ExLlamaV2, --standard_perplexity",
        description="Windows are at most 512 tokens apart; what does not fill a window is dropped.",
        feeds_last=True,
        stride=512,
        last="dropped",
        join="\n\n",
    ),
    Protocol(
        "megatron",
        source="Megatron-LM, zero-shot evaluation",
        description="Windows at most 32 tokens apart by default; the mean is capped at 20 nats.",
        stride=32,
        scores_next="always",
        join="\n\n",
        aggregate="capped",
        supported_arguments=("max_length", "stride"),
        count_words=count_words_and_lines,
        detokenizes=True,
    ),
    Protocol(
        "mlx-lm",
        source="mlx-lm, mlx_lm.perplexity",
        description=(
            "The token ids of all texts, each with the end-of-text token after it, are cut into rows; "
            "the first token of each is not scored and an incomplete row is dropped."
        ),
        max_length=512,
        encoding="default ended",
        last="dropped",
        join="tokens",
        error="sample",
    ),
    Protocol(
        "run-clm",
        source="transformers, run_clm.py and Trainer.evaluate",
        description=(
            "The token ids of every thousand texts are cut into blocks; the first token of each is "
            "not scored and an incomplete block is dropped."
        ),
        feeds_last=True,
        max_length="tokenizer or 1024",
        encoding="default",
        last="dropped",
        join="tokens",
        texts_joined=1000,
    ),
    Protocol(
        "yarn",
        source="YaRN, eval/perplexity.py",
        description="Windows at most 256 tokens apart, each with the start token, are averaged.",
        feeds_last=True,
        stride=256,
        start="every if any",
        aggregate="window means",
        supported_arguments=("max_length", "stride"),
    ),
    Protocol(
        "yarn-truncated",
        source="YaRN, eval/perplexity.py --truncate",
        description="One window of each text, with the start token, and the rest is cut off.",
        feeds_last=True,
        start="every if any",
        last="cut",
        aggregate="window means",
    ),
    Protocol(
        "longlora",
        source="LongLoRA and landmark attention, eval.py",
        description=(
            "Windows at most 256 tokens apart, each scoring all of its tokens: where they overlap, "
            "a token counts many times and with many lengths of context."
        ),
        feeds_last=True,
        stride=256,
        encoding="default",
        scores="all",
        last="popped",
        join="tokens",
        aggregate="window means",
        supported_arguments=("max_length", "stride"),
    ),
    Protocol(
        "fairseq",
        source="fairseq, fairseq-eval-lm --context-window (Press et al.)",
        description=(
            "One stream of lines with the end-of-text token around each; windows score their new "
            "tokens, and begin with as many as a stride."
        ),
        encoding="lines",
        start="once",
        start_is="eos",
        scores_next="always",
        first_window="stride",
        join="tokens",
        supported_arguments=("max_length", "stride"),
    ),
)
PROTOCOLS = {protocol.name: protocol for protocol in ROWS}
