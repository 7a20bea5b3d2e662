"""Report: the results for some texts as one self-contained HTML file."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from ..digests import describe_probe
from .assets import HERE, SCRIPTS, STYLE, joined
from .comparison import Pair, comparison_of_all, comparison_view
from .curves import NAMES, STRIDE, WINDOW, context_curve, setting_curve
from .markup import change, count, escape, number, payload
from .numbers import FEWEST, TOO_SHORT, meaning, story
from .reading import Reading
from .text_box import detail_box, text_box
from .tokens import piece_colour, surprise_legend, text_segments, token_data
from .window_picture import KEY, pictured_tokens, window_picture

# Nothing is fetched, whatever a text or a name may have smuggled in.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{title}</title>
<style>{style}</style>
<script>(() => {{ "use strict";
{script}}})();</script>
</head>
<body class="ps-report"><main class="ps-view">
<noscript><p>The texts are coloured by a script, which is switched off here.</p></noscript>
{body}
</main></body>
</html>
"""
SETTINGS = {"protocol": "Protocol", WINDOW: "Window", STRIDE: "Stride"}


def page(title: str, sections: Iterable[str]) -> str:
    """Write sections to one self-contained file."""
    return PAGE.format(
        policy=POLICY,
        title=escape(title),
        style=joined((STYLE, HERE / "report.css")),
        script=joined((*SCRIPTS, HERE / "report.js")),
        body="\n".join(section for section in sections if section),
    )


def report(
    result: dict,
    readings: Sequence[Reading],
    pairs: Sequence[Pair] = (),
    citation: str = "",
    command: str = "",
    notes: Sequence[str] = (),
) -> str:
    """Write the results and the coloured texts.

    Args:
        result: the metric's, of all texts together.
        readings: the texts that are shown; of a comparison none, but `pairs`.
        citation: how to quote the number.
        command: the command that reproduces it.
        notes: remarks that a reader needs with the number.
    """
    model = escape(_model(readings, pairs))
    named = map(_with_number, readings) if result["num_texts"] > 1 else readings
    return page(
        f"Perplexity {number(result['perplexity'])}",
        [
            headline(result, model, notes),
            measurements(result.get("measurements", ())),
            *_each(named, reading_view),
            comparison_of_all(pairs[0]) if pairs and pairs[0].is_one_of_several else "",
            *map(_comparison, pairs),
            contexts(result.get("by_context_length")),
            repeat(result, citation, command),
        ],
    )


def _model(readings: Sequence[Reading], pairs: Sequence[Pair]) -> str:
    return pairs[0].names[0] if pairs else readings[0].model if readings else "the model"


def _with_number(reading: Reading) -> Reading:
    """Add a text's own perplexity to its name."""
    if reading.perplexity is None:
        return reading
    return replace(reading, name=f"{reading.name}: {number(reading.perplexity)}")


def _each(shown: Iterable, write: Callable[..., str]) -> Iterator[str]:
    """Write each text with a number, so that its pieces can be referenced."""
    return (write(one, place) for place, one in enumerate(shown, 1))


def headline(result: dict, model: str, notes: Sequence[str]) -> str:
    """Write the number in words, its interval and its settings."""
    said = "".join(f'<p class="ps-note">{escape(note)}</p>' for note in notes)
    recipe = f'<p class="ps-recipe">{escape(" · ".join(_recipe(result)))}</p>'
    if _is_short(result):
        return (
            f"<header><h1>{count(result['num_tokens'], 'token')} scored by <bdi>{model}</bdi></h1>"
            f"<p>{TOO_SHORT}</p>{recipe}{said}</header>"
        )
    return (
        f"<header><h1>Perplexity for <bdi>{model}</bdi></h1>"
        f'<p class="ps-big">{number(result["perplexity"])}</p>'
        f"<p>{meaning(result['perplexity'], None)} Lower is better.</p>"
        f'<p class="ps-interval">{_interval(result)}</p>{recipe}{said}</header>'
    )


def _is_short(result: dict) -> bool:
    """Return whether there are too few tokens for a meaningful number."""
    return result["num_tokens"] < FEWEST


def _interval(result: dict) -> str:
    interval = result["perplexity_interval"]
    if interval is None:
        return "No interval: not enough text to estimate how far another part would differ."
    low, high = map(number, interval)
    return f"95 % interval {result['interval_scope']} {low} to {high}."


def _recipe(result: dict) -> list[str]:
    """List the settings of the number, without which it cannot be cited."""
    stride = result["stride"]
    return [
        count(result["num_texts"], "text"),
        f"{count(result['num_tokens'], 'token')} scored",
        f"protocol {result['protocol']}",
        f"window {result['max_length']:,}",
        *([] if stride is None else [f"stride {stride:,}"]),
        *([] if _is_short(result) else [_bits(result)]),
    ]


def _bits(result: dict) -> str:
    """Write the bits per byte, of the original text if it was detokenized."""
    if "bits_per_original_byte" in result:
        return f"{number(result['bits_per_original_byte'])} bits per byte of the original"
    return f"{number(result['bits_per_byte'])} bits per byte"


def reading_view(reading: Reading, place: int) -> str:
    """Show a text coloured by the surprisal of its tokens, their panel, and its windows."""
    segments, text = text_segments(reading)
    pieces = [text[segment.start : segment.end] for segment in segments]
    nll = reading.tokens["nll"]
    colours = [piece_colour(nll, segment, piece) for segment, piece in zip(segments, pieces)]
    data = token_data(reading, segments)
    title = f"<h2><bdi>{escape(reading.name)}</bdi></h2>" if reading.name else ""
    legend = f'<div class="ps-legend"><ul>{surprise_legend()}</ul></div>' if place == 1 else ""
    return (
        f'{title}<section class="ps-view" id="text-{place}" data-view="reading" data-payload={payload(data)}>'
        f"{story(reading)}{legend}"
        f'<div class="ps-pair">{text_box(pieces, colours, "token")}'
        f"{detail_box('what the model expected there')}</div>{_windows(reading)}</section>"
    )


def _windows(reading: Reading) -> str:
    if len(reading.tokens["windows"]) < 2:
        return '<p class="ps-note">It fits in one window: the stride makes no difference to it.</p>'
    reach, length = pictured_tokens(reading), len(reading.tokens["tokens"])
    part = (
        "" if reach >= length else f" The first {reach:,} tokens; the last line is the whole text."
    )
    return (
        '<details class="ps-more" open><summary>How the windows lie over the text</summary>'
        "<p>Each bar is one window. It reads its context to predict the tokens that it scores. The window of the "
        f"word that you point at is underlined in the text.{part}</p>"
        f"{window_picture(reading)}{KEY}</details>"
    )


def _comparison(pair: Pair) -> str:
    title = f"<h2><bdi>{escape(pair.reading.name)}</bdi></h2>" if pair.reading.name else ""
    return f"{title}{comparison_view(pair)}"


def measurements(results: Sequence[dict]) -> str:
    """Tabulate the results of several settings, with a curve if one number varies."""
    if not results:
        return ""
    good = [result for result in results if "error" not in result]
    varying = [key for key in SETTINGS if len({str(result.get(key)) for result in results}) > 1]
    names = "".join(f'<th scope="col">{SETTINGS[key]}</th>' for key in varying)
    rows = "".join(_row(result, varying) for result in results)
    table = (
        f'<table class="ps-table"><thead><tr>{names}<th scope="col">Perplexity</th>'
        '<th scope="col">Change<small>against the first, 95 % interval</small></th>'
        f'<th scope="col">Bits per byte</th></tr></thead><tbody>{rows}</tbody></table>'
    )
    drawn = len(varying) == 1 and varying[0] in NAMES and len(good) > 1
    is_finite = all(math.isfinite(result["perplexity"]) for result in good)
    curve = setting_curve(good, varying[0]) if drawn and is_finite else ""
    return f"<section><h2>Effect of the setting</h2>{curve}{table}</section>"


def _row(result: dict, varying: Sequence[str]) -> str:
    cells = "".join(f"<td>{escape(result.get(key, '–'))}</td>" for key in varying)
    if "error" in result:
        return f'<tr>{cells}<td colspan="3" class="ps-none">{escape(result["error"])}</td></tr>'
    ratio = result.get("ratio_to_first")
    changed = change(ratio) if ratio and ratio["ratio"] is not None else ""
    return (
        f"<tr>{cells}<td>{number(result['perplexity'])}</td><td>{changed}</td>"
        f"<td>{_bits(result).removesuffix(' bits per byte')}</td></tr>"
    )


def contexts(rows: Sequence[dict] | None) -> str:
    if not rows or len(rows) < 2 or not all(math.isfinite(row["perplexity"]) for row in rows):
        return ""
    return f"<section><h2>How far back the model looks</h2>{context_curve(rows)}</section>"


def repeat(result: dict, citation: str, command: str) -> str:
    """Show how to reproduce the number: the command, then citation, signature and probe."""
    typed = f"<p>The command that repeats it:</p><pre>{escape(command)}</pre>" if command else ""
    quoted = citation or (
        f"{result['signature']}{describe_probe(result)}\n"
        f"Texts read: digest {result['texts_digest']}"
    )
    return (
        f"<section><h2>How to repeat and to quote it</h2>{typed}"
        f"<p>Equal signatures, probes and texts give equal numbers.</p><pre>{escape(quoted)}</pre></section>"
    )
