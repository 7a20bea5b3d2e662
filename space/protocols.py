"""Description and settings of each protocol of the metric on the page.

All of it is read from the metric's own rows, so that a new one needs no word here.
"""

from dataclasses import dataclass

from .metric import protocol_rows

# Labels of the values of `add_start_token`.
START_CHOICES = {"automatic": True, "once": "once", "every": "every", "none": False}


@dataclass(frozen=True)
class Guide:
    """One protocol as the page presents it.

    Attributes:
        tool: whose number it is.
        idea: a sentence or two on how its windows differ.
        stride: whether the stride can be chosen.
        starts: the choices for the start token; empty where there is none.
        starts_every_window: whether a start token takes a place in each window, so that a stride
            of a whole window would skip a token.
        contexts: whether a text may come after a context that is not scored.
        words: whether each text is scored by itself, so that its words can be.
        slides: whether window and stride say how much context each token has.
    """

    tool: str
    idea: str
    stride: bool = False
    starts: tuple[str, ...] = ()
    starts_every_window: bool = False
    contexts: bool = True
    words: bool = True
    slides: bool = False


def guide(protocol: str) -> Guide:
    """Return the guide to a protocol; an empty one for a name that no protocol has."""
    row = protocol_rows().get(protocol)
    if row is None:
        return Guide(protocol, "")
    return Guide(
        row.source,
        row.description,
        "stride" in row.supported_arguments,
        _starts(row) if "add_start_token" in row.supported_arguments else (),
        row.start == "every if any",
        row.pairs is not None,
        row.scores_each_text,
        row.scores_next == "without overlap",
    )


def usual_stride(protocol: str, window: int) -> int:
    """Return a tool's default stride for a window, in tokens."""
    return protocol_rows()[protocol].usual_stride(window, guide(protocol).starts_every_window)


def _starts(row) -> tuple[str, ...]:
    # True is equal to 1, but "once" to nothing else: types are compared too.
    choices = {(type(choice), choice) for choice in row.start_choices}
    return tuple(name for name, value in START_CHOICES.items() if (type(value), value) in choices)
