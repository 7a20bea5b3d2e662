"""What the page begins with: two sentences, the words in them explained, and a tour.

The browser opens and closes the explanations by itself (`popover`): Escape or a click beside them
closes them, and no script is needed.
"""

TITLE = "Perplexity, window by window"
MEANINGS = {
    "perplexity": (
        "How many equally likely tokens the model would have to guess among, on average. 1 is certainty; "
        "a model that guesses blindly scores the size of its vocabulary. Lower means less surprised."
    ),
    "token": (
        "What a model reads and predicts: a word, a part of one, or a sign. Models cut the same text "
        "into different tokens."
    ),
    "window": (
        "The tokens the model can see at one time. A longer text is read in several windows. No token is "
        "scored with more before it than a window holds."
    ),
    "stride": (
        "How far the window moves on. A small stride leaves each token much context, and reads the text "
        "many times over; a stride as long as the window reads it once."
    ),
    "context": (
        "What stands before a token in its window: all that the model knows when it guesses the token. "
        "More context mostly makes the guess better."
    ),
    "bits per byte": (
        "The surprise of the whole text, in yes-or-no questions, divided by its size in bytes. Perplexity "
        "depends on the tokens; this does not, so it compares models that cut texts differently."
    ),
}
STEPS = (
    (
        "A model guesses, token by token",
        "The line above is a text in its tokens. Each lights up as it is scored: redder means more "
        "surprising. Perplexity sums the surprise up in one number.",
    ),
    (
        "It sees no more than a window",
        "The frame is what the model reads at once. Drag its blue handle: a narrow window knows little "
        "and guesses badly.",
    ),
    (
        "The window moves on by a stride",
        "Drag the green handle. A small stride leaves every token more context, and the counter shows "
        "what that costs: tokens read.",
    ),
    (
        "Now with a text of your own",
        "Write or paste one, or choose a sample. Move Window and Stride: a short text is scored again at "
        "once, and the change appears beside the number.",
    ),
    (
        "Look into the result",
        "Point at a token to see what the model expected there. The tabs show why context helps, what "
        "other tools would report, and how another model compares.",
    ),
)


def intro_view() -> str:
    return (
        f'<div class="ps-view ps-intro"><h1>{TITLE}</h1><p>'
        f"{term('perplexity', 'Perplexity')} measures how surprised a language model is by a text. It reads a long text "
        f"through a sliding {term('window')} of {term('token', 'tokens')}; each step is one {term('stride')}. Each token is scored once, by "
        f"what stands before it in the window: its {term('context')}. "
        '<button type="button" class="ps-tour-start" popovertarget="ps-tour-1">Take the tour</button>'
        f"</p>{''.join(map(_meaning, MEANINGS))}{''.join(map(_step, range(1, len(STEPS) + 1)))}</div>"
    )


def term(name: str, shown: str | None = None) -> str:
    """A word that explains itself when it is pressed; the hero's words point at the picture too."""
    key = name.replace(" ", "-")
    return (
        f'<button type="button" class="ps-term ps-term-{key}" data-term="{key}" '
        f'popovertarget="ps-about-{key}">{shown or name}</button>'
    )


def _meaning(name: str) -> str:
    return (
        f'<div popover id="ps-about-{name.replace(" ", "-")}" class="ps-about"><b>{name}</b>'
        f"<p>{MEANINGS[name]}</p></div>"
    )


def _step(number: int) -> str:
    """A card of the tour, opened by the one before and lying on it."""
    title, words = STEPS[number - 1]
    is_last = number == len(STEPS)
    back = _button("Back", number, "hide") if number > 1 else ""
    on = (
        _button("Done", 1, "hide", "autofocus")
        if is_last
        else _button("Next", number + 1, "show", "autofocus")
    )
    return (
        f'<div popover id="ps-tour-{number}" class="ps-about ps-tour"><small>{number} of {len(STEPS)}</small>'
        f"<b>{title}</b><p>{words}</p><p>{back}{on}</p></div>"
    )


def _button(label: str, number: int, action: str, more: str = "") -> str:
    return (
        f'<button type="button" class="ps-button" popovertarget="ps-tour-{number}" '
        f'popovertargetaction="{action}" {more}>{label}</button> '
    )
