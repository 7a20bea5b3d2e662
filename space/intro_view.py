"""The head of the page: a question, a sentence about the answer, and a glossary.

The browser opens and closes the explanations by itself (`popover`): Escape or a click beside them
closes them, and no script is needed.
"""

TITLE = "How surprised is a language model by your words?"
MEANINGS = {
    "perplexity": (
        "How many equally likely tokens the model would have to guess among, on average. 1 is certainty; "
        "a model that guesses blindly scores the size of its vocabulary. Lower means less surprised."
    ),
    "token": (
        "The unit that a model reads and predicts: a word, a part of one, or a sign. Models split the "
        "same text into different tokens."
    ),
    "window": (
        "The tokens that the model can see at one time. A longer text is read in several windows. No "
        "token is scored with more context than fits into a window."
    ),
    "stride": (
        "How far the window moves. A small stride gives each token much context, but reads the text "
        "many times; a stride as long as the window reads it once."
    ),
    "context": (
        "The text before a token in its window: everything that the model knows when it guesses the "
        "token. More context usually makes the guess better."
    ),
    "bits per byte": (
        "The surprise of the whole text, in yes-or-no questions, divided by its size in bytes. Perplexity "
        "depends on the tokens; this does not, so it compares models that split texts differently."
    ),
}


def intro_view() -> str:
    """Write the title, one sentence, and the explanations."""
    return (
        f'<div class="ps-view ps-intro"><h1>{TITLE}</h1><p>Stronger colours mean bigger surprises. '
        f"The model sees only one window at a time.</p>{''.join(map(_meaning, MEANINGS))}</div>"
    )


def term(name: str, shown: str | None = None) -> str:
    """Write a term that shows its explanation when it is pressed."""
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
