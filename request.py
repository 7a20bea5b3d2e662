"""What a call asks for, checked: everything but the models it is asked of."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from .arguments import (
    LongContext,
    Setting,
    check_choice,
    check_detokenizer,
    check_key_tokens,
    check_long_context,
    check_names_of,
    check_separator,
    check_word_counts,
    check_words,
    list_settings,
)
from .identity import TextsDigest
from .key_tokens import KeyTokenRule
from .measures import TOKEN_COLUMNS, Measure, token_measures
from .parts import Chat, Parts, check_alone, check_parts
from .report import Extras
from .words import CORRECTIONS


@dataclass(frozen=True)
class Request:
    """The texts of a call and what is to be measured of them.

    Attributes:
        settings: the measurements; one, unless `gives_list`.
        long_context: what is asked of the length of the context.
        key_rule: how key tokens are told from others; None where all count.
        parts: what of each text is scored; None for all.
        words: whether words are scored.
        word_spans: the words of each text; None for those between white space.
        margin: what a perplexity may exceed that of the reference by, as a share.
        detokenizer: what turned the texts into prose, for the signature.
    """

    texts: list[str]
    settings: list[Setting]
    gives_list: bool
    add_start_token: bool | str
    separator: str | None
    long_context: LongContext
    key_rule: KeyTokenRule | None
    parts: Parts | None
    words: bool
    word_spans: list[list[tuple[int, int]]] | None
    word_correction: str | None
    word_counts: list[int] | None
    num_alternatives: int
    token_columns: Sequence[str]
    margin: float | None
    detokenizer: str | None
    extras: Extras

    @property
    def reads_characters(self) -> bool:
        """Whether the characters of each token are needed, whatever it is compared with."""
        return self.extras.with_tokens or self.words or self.key_rule is not None

    def measures(self) -> list[Measure]:
        """What to measure of each token."""
        return token_measures(self.num_alternatives, self.token_columns)

    @cached_property
    def text_digests(self) -> list[TextsDigest]:
        """Of each text, with what of it is scored."""
        lines = self.texts if self.parts is None else self.parts.describe_texts(self.texts)
        return [TextsDigest.of([line]) for line in lines]


def check_request(
    texts: list[str],
    chats: Sequence[Chat] | None,
    *,
    protocol,
    max_length,
    stride,
    add_start_token,
    separator,
    context_lengths,
    positions,
    carry,
    key_tokens,
    evaluator,
    contexts,
    score_spans,
    boundary,
    words,
    word_correction,
    word_counts,
    num_alternatives,
    token_columns,
    reference_model,
    margin,
    return_token_scores,
    return_totals,
    detokenizer,
) -> Request:
    """Check the arguments of a call by themselves and against each other.

    Args:
        reference_model: whatever the model is compared with, or None.

    Raises:
        TypeError, ValueError: they are not what the metric's documentation says.
    """
    settings, gives_list = list_settings(protocol, max_length, stride)
    long_context = check_long_context(
        context_lengths, positions, carry, settings, gives_list, add_start_token
    )
    if carry and reference_model is not None:
        raise ValueError("`carry` must be False with a reference. Make a call for each model.")
    key_rule = check_key_tokens(key_tokens, evaluator, gives_list)
    word_counts = check_word_counts(word_counts, len(texts))
    check_separator(separator)
    check_detokenizer(detokenizer)
    parts = check_parts(contexts, score_spans, boundary, separator, texts, chats)
    word_spans = None
    if words is not False:
        check_choice("word_correction", word_correction, CORRECTIONS)
        word_spans = check_words(words, texts)
    of_whole_texts = {
        "reference_model": reference_model,
        "context_lengths": context_lengths,
        "positions": positions,
        "carry": carry or None,
        "key_tokens": key_tokens,
    }
    check_alone(of_whole_texts, parts, words)
    check_names_of("token_columns", token_columns, TOKEN_COLUMNS)
    with_tokens = return_token_scores or num_alternatives > 0 or bool(token_columns)
    return Request(
        texts=texts,
        settings=settings,
        gives_list=gives_list,
        add_start_token=add_start_token,
        separator=separator,
        long_context=long_context,
        key_rule=key_rule,
        parts=parts,
        words=words is not False,
        word_spans=word_spans,
        word_correction=word_correction,
        word_counts=word_counts,
        num_alternatives=int(num_alternatives),  # numpy's overflow
        token_columns=token_columns,
        margin=margin,
        detokenizer=detokenizer,
        extras=Extras(with_tokens, bool(return_totals), return_totals == "texts"),
    )
