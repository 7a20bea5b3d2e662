"""Identify a tokenizer by a digest of its settings and output, and refuse one that samples."""

import json
import weakref
from collections.abc import Iterable
from types import FunctionType
from typing import Any

import numpy as np
import xxhash
from tokenizers import models
from transformers import AddedToken, PreTrainedTokenizerBase

from ..digests import as_json, digest_of
from ..errors import ArgumentTypeError
from .tokenization import (
    TokenizedText,
    VocabularyIds,
    backend_of,
    end_of_ids,
    extra_special,
    shared_lock,
    token_texts,
    tokenize,
    tokens_of,
    vocabulary_ids,
)

# Long words have many segmentations, so a tokenizer that samples practically never repeats one.
TRIAL = "Incomprehensibilities notwithstanding, counterrevolutionaries mischaracterized it. " * 4
TRIALS = 4

# Parts of the names of settings that are of a tokenizer's origin, padding, truncation or chats, or
# that are digested elsewhere; one that was saved and loaded has more of them.
TOKENIZER_PROVENANCE = (
    "name_or_path", "file", "padding", "pad_token", "truncation", "max_length", "verbose", "template",
    "chat", "backend", "local", "special_tokens", "cache", "init_",
    "total_vocab_size",
    "deprecation_warnings",
)  # fmt: skip
# The probe text, which is followed by PROBE_TOKENS tokens of the vocabulary.
PROBE_TEXT = (
    "The quick brown fox; it's 1,234.56 EUR (or 0x7f)!  Two  spaces,\ttab\r\nand\n\nlines. "
    "na\u00efve nai\u0308ve \ufb01ne \u201cquoted\u201d \u2014 \u2026 \u00a0 \u200b \u3000 "
    "\u0414\u043e\u0431\u0440\u044b\u0439 \u03ba\u03cc\u03c3\u03bc\u03b5 "
    "\u0645\u0631\u062d\u0628\u0627 \u05e9\u05dc\u05d5\u05dd \u0928\u092e\u0938\u094d\u0924\u0947 "
    "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35 \u4f60\u597d\u3002\u3053\u3093\u306b\u3061\u306f "
    "\uc548\ub155 \U0001f469\u200d\U0001f4bb\U0001f1fa\U0001f1f3 <b>x</b> https://a.b/c?d=e#f "
    "def f(x): return {'a': [x**2 % 3]} # ok <s> </s> <unk> <|endoftext|> IOI \u0130\u0131\u00df"
)
PROBE_TOKENS = 1024
# State and digest of tokenizers without custom code.
_TRIED: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
# Packages that methods of transformers' tokenizers are written in.
WRITERS = ("transformers", "huggingface_hub")


def check_tokenizer(tokenizer: Any, argument: str = "tokenizer") -> None:
    """Check that an object is a tokenizer, and a deterministic one.

    Raises:
        TypeError: it is not a tokenizer.
        ValueError: it samples, or has a part that cannot be identified.
    """
    needed = ("convert_ids_to_tokens", "is_fast")  # which mistral-common's has not
    if not callable(tokenizer) or not all(hasattr(tokenizer, name) for name in needed):
        raise ArgumentTypeError(
            argument, "be a transformers tokenizer", got=type(tokenizer).__name__
        )
    check_repeatable(tokenizer, f"`{argument}`")


def check_repeatable(tokenizer: PreTrainedTokenizerBase, name: str) -> None:
    """Check that a tokenizer is deterministic.

    Args:
        name: its name in an error.

    Raises:
        ValueError: it samples, or has a part that cannot be identified.
    """
    setting = random_setting(tokenizer)
    if setting is None and _has_own_code(tokenizer):
        # The tokenizers library samples only by its settings.
        first, *others = tokenize(tokenizer, [TRIAL] * TRIALS)
        if any(not np.array_equal(other.ids, first.ids) for other in others):
            setting = f"a {type(tokenizer).__name__} that encoded one text in two ways"
    if setting is not None:
        raise ValueError(
            f"{name} must be deterministic, got {setting}: it samples its segmentation, so scores are "
            "not reproducible. Disable sampling."
        )
    part = part_in_python(tokenizer)
    if part is not None:
        raise ValueError(
            f"{name} must consist of components of the tokenizers library, got a {part} in Python, "
            "which a signature cannot identify. Use one of the library's, or a subclass of "
            "PreTrainedTokenizer."
        )
    words = words_not_told_apart(tokenizer)
    if words is not None:
        raise ValueError(
            f"{name} must tell its words apart, got {words}. The tokenizers library may save only one "
            "of them, or take one at random, so a signature cannot identify what it does. Rename or remove "
            "the others."
        )
    backend = backend_of(tokenizer)
    if (
        isinstance(getattr(backend, "model", None), models.Unigram)
        and '",null]' in backend.to_str()
    ):
        raise ValueError(
            f"{name} must have a finite score for each piece of its unigram model, got one that is "
            "infinite or nan: the tokenizers library saves these alike, so a signature cannot identify it."
        )


def random_setting(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """Describe the setting that makes a tokenizer sample; None without one."""
    model = getattr(getattr(tokenizer, "backend_tokenizer", None), "model", None)
    for setting in ("dropout", "alpha"):  # of byte-pair encoding and unigram models
        value = getattr(model, setting, None)
        if value:
            return f"`backend_tokenizer.model.{setting}`={value:.3g}"
    sampling = getattr(tokenizer, "sp_model_kwargs", None) or {}
    return "`sp_model_kwargs` with enable_sampling" if sampling.get("enable_sampling") else None


def part_in_python(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """Return the name of a component of a fast tokenizer in Python; None without one."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    for name in ("normalizer", "pre_tokenizer", "decoder"):
        part = getattr(backend, name, None)
        try:
            if part is not None:
                part.__getstate__()
        except Exception:  # the library's own components can be serialised
            return name.replace("_", "-")
    return None


def words_not_told_apart(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """Describe words of a fast tokenizer of which its library forgets some; None without any."""
    backend, known = backend_of(tokenizer), vocabulary_ids(tokenizer)
    if known is None:
        return None
    if known.shared and (words := _merged_by_one_id(backend, known)):
        return f"{_listed(words)} with one id, which merge"
    added = backend.get_added_tokens_decoder()
    if words := _added_with_one_id(backend, known, added):
        return f"{_listed(words)} with one id, at least one of them added"
    if words := _normalised_alike(backend, added):
        return f"{_listed(words)}, added tokens with one normalised form"
    return None


def _listed(words: Iterable[str]) -> str:
    return " and ".join(map(repr, sorted(words)))


def _merged_by_one_id(backend: Any, known: VocabularyIds) -> list[str]:
    """Return words with one id that a byte-pair encoding merges: the library keeps merges by id."""
    ids = backend.get_vocab(with_added_tokens=False)
    merges = json.loads(backend.to_str())["model"].get("merges", ())
    pairs = (merge.split(" ") if isinstance(merge, str) else merge for merge in merges)
    number = next((ids[part] for pair in pairs for part in pair if ids[part] in known.shared), None)
    return [word for word in ids if ids[word] == number]


def _added_with_one_id(backend: Any, known: VocabularyIds, added: dict) -> list[str]:
    """Return an added token and other words with its id: the library lists only the last one added."""
    contents = {number: token.content for number, token in added.items()}
    unknown = sum(backend.model.token_to_id(content) is None for content in contents.values())
    num_words = backend.get_vocab_size(with_added_tokens=True)
    suspects = {
        number
        for number, content in contents.items()
        if number in known.shared or backend.model.id_to_token(number) not in (None, content)
    }
    if not suspects and num_words - known.num_words <= unknown:
        return []
    by_id: dict[int, set[str]] = {number: {content} for number, content in contents.items()}
    for word, number in backend.get_vocab(with_added_tokens=True).items():
        by_id.get(number, set()).add(word)
    return next((list(words) for words in by_id.values() if len(words) > 1), [])


def _normalised_alike(backend: Any, added: dict) -> list[str]:
    """Return added tokens with one normalised form: the library recognises one of them, at random."""
    if backend.normalizer is None:
        return []
    forms: dict[str, set[str]] = {}
    for token in added.values():
        if token.normalized:
            form = backend.normalizer.normalize_str(token.content)
            forms.setdefault(form, set()).add(token.content)
    return next((list(words) for words in forms.values() if len(words) > 1), [])


# --- the digest -----------------------------------------------------------------------------------


def tokenizer_digest(tokenizer: PreTrainedTokenizerBase) -> str:
    """Digest everything that affects encoding and decoding, except padding and truncation.

    The digest covers the tokenizer's state, and its tokens of a probe text, which identify custom
    code.  Other threads that encode with the tokenizer wait, because they change its settings meanwhile.
    """
    with shared_lock(tokenizer):
        return _digest(tokenizer)


def _digest(tokenizer: PreTrainedTokenizerBase) -> str:
    backend = backend_of(tokenizer)
    if backend is not None:
        state: list[Any] = [_backend_state(tokenizer, backend)]
        state.append(getattr(tokenizer, "split_special_tokens", False))
        state.append(_skipped_as_special(tokenizer, backend))
    else:
        settings = _plain_settings(tokenizer)
        given = {
            key: str(value) if isinstance(value, AddedToken) else value
            for key, value in getattr(tokenizer, "init_kwargs", {}).items()
            if key not in settings and not any(word in key for word in TOKENIZER_PROVENANCE)
        }
        state = [type(tokenizer).__name__, sorted(tokenizer.get_vocab().items()), settings, given]
        state += _rules(tokenizer)
    special: dict = dict(tokenizer.special_tokens_map)
    # transformers 4 leaves out empty ones, which have the id of the unknown token.
    special |= {
        name: "" for name in ("bos_token", "eos_token") if getattr(tokenizer, name, None) == ""
    }
    if tokenizer.is_fast:  # others keep the padding token whole, wherever it is
        special.pop("pad_token", None)
    if extra := extra_special(tokenizer):
        special["extra"] = extra
    if _has_own_code(tokenizer):
        offsets = [part.offsets for part in _encode_probe(tokenizer)]
        tried = [_try_out(tokenizer), [None if o is None else o.tolist() for o in offsets]]
        return digest_of([digest_of([state, special]), *tried])
    # Usually it has not changed; serialising its state would take several times longer.  Its tokens of
    # a short text show changed code whatever its form.
    written, *others = state
    hashed = xxhash.xxh3_128(written.encode())
    for part in _encode_probe(tokenizer):
        hashed.update(part.ids.tobytes())
        hashed.update(b"" if part.offsets is None else part.offsets.tobytes())
    key = (hashed.digest(), repr([others, special]))
    known = _TRIED.get(tokenizer)
    if known is None or known[0] != key:
        digest = digest_of([digest_of([state, special]), _try_out(tokenizer)])
        known = _TRIED[tokenizer] = key, digest
    return known[1]


def _backend_state(tokenizer: PreTrainedTokenizerBase, backend: Any) -> str:
    """Return the state of a fast tokenizer as JSON, without truncation and padding.

    The JSON holds one word for each id, a random one if there are two; then the whole vocabulary is
    digested in its place.
    """
    known = vocabulary_ids(tokenizer)
    if known is not None and known.digest:
        written = json.loads(backend.to_str()) | {"padding": None, "truncation": None}
        written["model"]["vocab"] = known.digest
        return as_json(written)
    # Truncation and padding come first in the JSON; parsing half a megabyte would be slow.
    return backend.to_str().split('"added_tokens":', 1)[-1]


def _skipped_as_special(tokenizer: PreTrainedTokenizerBase, backend: Any) -> list[bool]:
    """Return which added tokens are special to the tokenizers library: those that ever were."""
    ids = tokenizer.added_tokens_decoder
    return [backend.decode([number], skip_special_tokens=True) == "" for number in ids]


def _rules(tokenizer: Any) -> list:
    """List what determines how a tokenizer in Python splits a text, besides its vocabulary."""
    ranks: dict = getattr(tokenizer, "bpe_ranks", {})
    added = getattr(tokenizer, "added_tokens_decoder", {})
    parts = [
        (name, part)  # such as the WordPiece of BERT-like ones
        for name, part in sorted(vars(tokenizer).items())
        if type(part).__module__.startswith("transformers.")
    ]
    return [
        sorted(ranks, key=lambda pair: ranks[pair]),
        [_sentencepiece(owner) for owner in (tokenizer, *(part for _, part in parts))],
        sorted((number, repr(token)) for number, token in added.items()),
        sorted(getattr(tokenizer, "_added_tokens_encoder", {}).items()),
        getattr(tokenizer, "split_special_tokens", False),
        *([name, _plain_settings(part)] for name, part in parts),
    ]


def _sentencepiece(owner: object) -> list[str]:
    """Digest the models of SentencePiece of a tokenizer, or of a part of it."""
    held = (value for _, value in sorted(getattr(owner, "__dict__", {}).items()))
    protos = [m.serialized_model_proto() for m in held if hasattr(m, "serialized_model_proto")]
    return [xxhash.xxh3_128(proto).hexdigest() for proto in protos]


def _plain_settings(owner: object) -> dict:
    """Return the attributes of a tokenizer, or a part of it, that consist of numbers and strings."""
    return {
        name: sorted(map(repr, value)) if isinstance(value, set) else value
        for name, value in getattr(owner, "__dict__", {}).items()
        if not name.startswith("_")
        and not any(word in name for word in TOKENIZER_PROVENANCE)
        and _is_plain(value)
    }


def _is_plain(value: object) -> bool:
    """Return whether a value is a number or a string, or consists of such."""
    if isinstance(value, dict):
        return all(isinstance(key, str) for key in value) and all(map(_is_plain, value.values()))
    if isinstance(value, list | tuple | set):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str | np.generic)


def _has_own_code(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Check whether custom code may affect how a tokenizer encodes."""
    kind = type(tokenizer)
    return (
        not (tokenizer.is_fast and kind.__module__.startswith("transformers."))
        or any(
            callable(value) and callable(getattr(kind, name, None))
            for name, value in vars(tokenizer).items()
        )
        or any(map(_is_replaced, kind.__mro__))
    )


def _is_replaced(kind: type) -> bool:
    """Check whether a method of a class of transformers was written elsewhere."""
    if not kind.__module__.startswith("transformers."):
        return False
    return any(
        isinstance(value, FunctionType)
        and value.__globals__.get("__name__", "").partition(".")[0] not in WRITERS
        for value in vars(kind).values()
    )


def _encode_probe(tokenizer: PreTrainedTokenizerBase) -> list[TokenizedText]:
    """Encode a probe text of many scripts, without and with special tokens."""
    return [
        *tokenize(tokenizer, [PROBE_TEXT, _added_words(tokenizer)], with_offsets=True),
        *tokenize(tokenizer, [PROBE_TEXT], "default"),
    ]


def _added_words(tokenizer: PreTrainedTokenizerBase) -> str:
    """Join the added tokens that are normalised, in several cases.

    They are recognised as the normalizer wrote them when they were added; its settings may have been
    changed in place since.
    """
    added = getattr(tokenizer, "added_tokens_decoder", {}).values()
    words = sorted(token.content for token in added if token.normalized)
    return " ".join(case(word) for word in words for case in (str, str.lower, str.upper))


def _added_in_words(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Write each added token by itself, between letters and between brackets, also as normalised.

    If it was added before with other settings, the tokenizers library may still recognise it by these,
    as normalised or not; it does not save them.
    """
    backend = backend_of(tokenizer)
    if backend is None:
        return []
    words = [token.content for token in tokenizer.added_tokens_decoder.values()]
    if backend.normalizer is not None:
        cases = (backend.normalizer.normalize_str, str.lower, str.upper)
        words += [case(word) for word in words for case in cases]
    return [f"{word} x{word}x ({word}) {word}{word}" for word in words]


def _try_out(tokenizer: PreTrainedTokenizerBase) -> list:
    """Encode a probe text, and decode some tokens of the vocabulary.

    The text has many scripts, then tokens from the whole vocabulary, unchanged and with swapped case,
    and added tokens.
    """
    end = end_of_ids(tokenizer)
    tokens = tokens_of(tokenizer, range(0, end, max(1, end // PROBE_TOKENS)))
    words = " ".join(tokens).replace("\u0120", " ").replace("\u2581", " ")
    texts = [PROBE_TEXT, words, words.swapcase()]
    if added := _added_words(tokenizer):
        texts.append(added)
    streams = tokenize(tokenizer, texts + _added_in_words(tokenizer))
    streams += tokenize(tokenizer, [PROBE_TEXT], "default")
    return [[stream.ids.tolist() for stream in streams], token_texts(tokenizer, tokens)]
