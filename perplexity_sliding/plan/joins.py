"""Where a context and its text meet: whether the white space between two words is missing there.

Tables hold a context and what follows it in two columns, and the space between them in neither.
"""

import re
import unicodedata

# How the names of characters begin in scripts that put no space between words.
UNSPACED_SCRIPTS = (
    *("CJK", "HIRAGANA", "KATAKANA", "HALFWIDTH", "FULLWIDTH", "IDEOGRAPHIC", "BOPOMOFO"),
    *("THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN", "YI", "JAVANESE", "BALINESE"),
)
# A context may end in these, and a text begin with them, without a space in between.
JOINING = frozenset("'’/\\@#&*-‐‑–—_")
OPENING_QUOTES = frozenset("\"'")
CLITIC = re.compile(r"['’](?:d|ll|m|re|s|t|ve)\b", re.IGNORECASE)


def runs_together(context: str, text: str) -> bool:
    """Return whether letters, digits or marks meet that white space keeps apart in their script."""
    before, after = context[-1:], text[:1]
    if not before or not after or _is_unspaced(before) or _is_unspaced(after):
        return False
    return _ends_word(before) and _begins_word(after) and not CLITIC.match(text)


def _is_unspaced(character: str) -> bool:
    return unicodedata.name(character, "").split(" ")[0].split("-")[0] in UNSPACED_SCRIPTS


def _ends_word(character: str) -> bool:
    """Return whether a space follows a character: a letter, a digit, or a mark that closes."""
    kind = unicodedata.category(character)
    return character not in JOINING and (kind[0] in "LMN" or kind in ("Pe", "Pf", "Po"))


def _begins_word(character: str) -> bool:
    """Return whether a space comes before a character: a letter, a digit, or a mark that opens."""
    kind = unicodedata.category(character)
    return kind[0] in "LN" or kind in ("Ps", "Pi", "Sc") or character in (*OPENING_QUOTES, "¿", "¡")
