"""Two models on one text: the verdict, both numbers, and the text coloured by the better model."""

import json
import math

from .markup import count, escape, number, payload
from .service import Compared, Scored
from .surprise import ENDLESS
from .text_box import detail_box, text_box

# A difference of less than this many bits on a piece of text is left plain.
SLIGHT, CLEAR = 0.5, 3.0
WORST_SHOWN = 10


def compare_view(compared: Compared) -> str:
    names = [escape(one.loaded.name) for one in compared.scored]
    text = compared.scored[0].text
    pieces = [text[piece.start : piece.end] for piece in compared.pieces]
    colours = [_colour(piece.bits) for piece in compared.pieces]
    data = {
        "models": [one.loaded.name for one in compared.scored],
        "bits": [
            piece.bits and [round(min(bits, ENDLESS), 2) for bits in piece.bits]
            for piece in compared.pieces
        ],
    }
    first = compared.scored[0]
    mark = first.settings.mark(first.text, but=("window", "stride", "protocol"))
    return (
        f'<div class="ps-view" data-view="compare" data-of="{escape(mark)}" data-payload="{payload(data)}">'
        f'<p class="ps-verdict">{verdict(compared)}</p>{_table(compared.scored)}'
        f"{_same_tokens(compared.comparison, names)}{_legend(names)}"
        f'<div class="ps-pair">{text_box(pieces, colours, "piece")}'
        f"{detail_box('how surprising it was for either model')}</div></div>"
    )


def verdict(compared: Compared) -> str:
    """One sentence on who predicts the text better, and how sure that is."""
    first, second = (escape(one.loaded.name) for one in compared.scored)
    difference = compared.difference
    if math.isnan(difference.mean):
        return "One of the models held a part of this text for impossible: no fair comparison."
    better, worse = (second, first) if difference.mean > 0 else (first, second)
    saved = f"{number(abs(difference.mean), 3)} bits per byte"
    if difference.interval is None:
        return (
            f"<b>{better}</b> predicts this text better than {worse}, by {saved}, but the text is too "
            "short to say whether that is chance."
        )
    low, high = sorted(abs(end) for end in difference.interval)
    if difference.interval[0] <= 0 <= difference.interval[1]:
        return (
            f"<b>No clear difference.</b> On this text {better} is ahead by {saved}, but the 95 % "
            f"interval of the difference, {number(difference.interval[0], 2)} to "
            f"{number(difference.interval[1], 2)}, includes zero."
        )
    return (
        f"<b>{better}</b> predicts this text better than {worse}: it needs {saved} less "
        f"(95 % interval {number(low, 3)} to {number(high, 3)})."
    )


def _table(scored: tuple[Scored, Scored]) -> str:
    rows = "".join(
        f"<tr><th scope='row'>{escape(one.loaded.name)}</th>"
        f"<td>{number(one.result['bits_per_byte'])}</td><td>{number(one.result['perplexity'])}</td>"
        f"<td>{count(one.result['num_tokens'], 'token')}</td></tr>"
        for one in scored
    )
    settings = scored[0].settings
    return (
        '<table class="ps-table"><thead><tr><th scope="col">Model</th><th scope="col">Bits per byte'
        '</th><th scope="col">Perplexity</th><th scope="col">Scored</th></tr></thead>'
        f"<tbody>{rows}</tbody></table><p class='ps-note'>Both read the text in windows of "
        f"{count(settings.window, 'token')}. Compare bits per byte: the models may cut the text into "
        "tokens of different size, so their perplexities are not on one scale.</p>"
    )


def _same_tokens(comparison: dict | None, names: list[str]) -> str:
    """The metric's own comparison, token by token, of two models that read the same tokens."""
    if comparison is None:
        return ""
    first, second = names
    ratio = _with_interval(comparison, "perplexity_ratio", "")
    rows = "".join(
        f"<tr><th scope='row'><code>{_quoted(token['token'])}</code></th>"
        f"<td>{number(token['kl'], 3)}</td>"
        f"<td>{number(token['nll'] / math.log(2), 3)}</td>"
        f"<td>{number(token['reference_nll'] / math.log(2), 3)}</td>"
        f"<td><code>{_quoted(token['top'])}</code></td>"
        f"<td><code>{_quoted(token['reference_top'])}</code></td></tr>"
        for token in comparison["worst_tokens"][:WORST_SHOWN]
    )
    heads = "".join(
        f'<th scope="col">{head}</th>'
        for head in (
            *("Token", "KL in nats", f"Bits under {first}", f"Bits under {second}"),
            *(f"Likeliest for {first}", f"Likeliest for {second}"),
        )
    )
    return (
        f"<p>Both read the same tokens. Perplexity of {first} divided by that of {second}: {ratio}. "
        f"How much the predictions change: mean KL {_with_interval(comparison, 'kl', ' nats')}, "
        f"same token chosen {number(100 * comparison['same_top'], 3)} %.</p>"
        "<p class='ps-note'>The tokens whose predictions differ most:</p>"
        f'<table class="ps-table"><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>'
    )


def _with_interval(comparison: dict, name: str, unit: str) -> str:
    value, interval = comparison[name], comparison[f"{name}_interval"]
    if value is None:
        return "not defined, as one of them is infinite"
    if interval is None:
        return f"{number(value)}{unit} (the text is too short for an interval)"
    return f"{number(value)}{unit} (95 % interval {' to '.join(map(number, interval))})"


def _quoted(token: str) -> str:
    """A token with its spaces and line ends to be seen."""
    return escape(json.dumps(token, ensure_ascii=False))


def _legend(names: list[str]) -> str:
    first, second = names
    return (
        '<div class="ps-legend"><p>Which model was less surprised by each piece:</p><ul>'
        f"<li><span class='ps-box w2'>{first}</span><small>by over {CLEAR:g} bits</small></li>"
        f"<li><span class='ps-box w1'>{first}</span><small>by {SLIGHT} to {CLEAR:g}</small></li>"
        "<li><span class='ps-box'>neither</span><small>or not scored</small></li>"
        f"<li><span class='ps-box v1'>{second}</span><small>by {SLIGHT} to {CLEAR:g}</small></li>"
        f"<li><span class='ps-box v2'>{second}</span><small>by over {CLEAR:g} bits</small></li>"
        "</ul></div>"
    )


def _colour(bits: tuple[float, float] | None) -> str:
    """w for the first model, v for the second; 2 where the difference is clear."""
    if bits is None or abs(bits[0] - bits[1]) < SLIGHT:
        return ""
    return ("w" if bits[0] < bits[1] else "v") + ("2" if abs(bits[0] - bits[1]) >= CLEAR else "1")
