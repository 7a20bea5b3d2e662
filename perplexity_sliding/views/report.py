"""Results and coloured texts as one self-contained HTML page: a file, or the output of a cell."""

import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from ..digests import TextsDigest, describe_probe
from ..protocols import PROTOCOLS
from . import SHOWN, Reading, own_perplexities, replaced, within
from .charts import KEY, context_curve, pictured_tokens, setting_curve, window_picture
from .comparison import Pair, comparison_of_all, comparison_view, pair_of
from .text import (
    LABELS,
    bits_colour,
    change,
    count,
    escape,
    most_surprising,
    number,
    odds,
    payload,
    piece_colour,
    text_pair,
    text_segments,
    token_data,
)

# Not the file: in the cache of the Hub it is a link to a file elsewhere.
HERE = Path(__file__).parent.resolve()
STYLE = HERE / "pieces.css"
# A page with views must include these before its own.
SCRIPTS = tuple(HERE / name for name in ("base.js", "text.js", "tell.js", "pairs.js"))
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
# How likely a token at the lower edge of each colour is.
ODDS = (
    "likelier than 1 in 2",
    "to 1 in 8",
    "to 1 in 64",
    "to 1 in 1,000",
    "to 1 in 33,000",
    "rarer",
)
SETTINGS = {"protocol": "Protocol", "max_length": "Window", "stride": "Stride"}
HEIGHT = 720  # pixels that a notebook gives to it
FEWEST = 20  # tokens; a perplexity of fewer says more of chance than of the text
TOO_SHORT = (
    f"Too short for a perplexity: over fewer than {FEWEST} tokens it says more about chance than about "
    "the text."
)


def report(
    result: dict,
    readings: Sequence[Reading],
    pairs: Sequence[Pair] = (),
    citation: str = "",
    command: str = "",
    notes: Sequence[str] = (),
) -> str:
    """Write the result of all texts together, and the coloured texts: of a comparison, `pairs` alone.

    Args:
        citation: how to quote the number.
        command: the command that reproduces it.
        notes: remarks that a reader needs with the number.
    """
    model = pairs[0].names[0] if pairs else readings[0].model if readings else "the model"
    rows, curve = result.get("by_context_length") or [], ""
    if len(rows) > 1 and all(math.isfinite(row["perplexity"]) for row in rows):
        curve = f"<section><h2>How far back the model looks</h2>{context_curve(rows)}</section>"
    sections = [
        headline(result, escape(model), notes),
        measurements(result.get("measurements", ())),
        *(reading_view(reading, place) for place, reading in enumerate(readings, 1)),
        comparison_of_all(pairs[0]) if pairs and pairs[0].is_one_of_several else "",
        *(f"{_title(pair.reading.name)}{comparison_view(pair)}" for pair in pairs),
        curve,
        repeat(result, citation, command),
    ]
    return PAGE.format(
        policy=POLICY,
        title=f"Perplexity {number(result['perplexity'])}",
        style=joined((STYLE, HERE / "report.css")),
        script=joined((*SCRIPTS, HERE / "report.js")),
        body="\n".join(section for section in sections if section),
    )


def joined(paths: Iterable[Path]) -> str:
    return "\n".join(path.read_text(encoding="utf-8") for path in paths)


def _title(name: str) -> str:
    return f"<h2><bdi>{escape(name)}</bdi></h2>" if name else ""


def headline(result: dict, model: str, notes: Sequence[str]) -> str:
    """Write the number in words, its interval, and the settings without which it cannot be cited."""
    is_short = result["num_tokens"] < FEWEST
    recipe = [
        count(result["num_texts"], "text"),
        f"{count(result['num_tokens'], 'token')} scored",
        f"protocol {result['protocol']}",
        f"window {result['max_length']:,}",
        *([] if result["stride"] is None else [f"stride {result['stride']:,}"]),
        *([] if is_short else [_bits(result)]),
    ]
    said = f'<p class="ps-recipe">{escape(" · ".join(recipe))}</p>'
    said += "".join(f'<p class="ps-note">{escape(note)}</p>' for note in notes)
    if is_short:
        return (
            f"<header><h1>{count(result['num_tokens'], 'token')} scored by <bdi>{model}</bdi></h1>"
            f"<p>{TOO_SHORT}</p>{said}</header>"
        )
    interval = "No interval: not enough text to estimate how far another part would differ."
    if result["perplexity_interval"] is not None:
        low, high = map(number, result["perplexity_interval"])
        interval = f"95 % interval {result['interval_scope']} {low} to {high}."
    perplexity = number(result["perplexity"])
    meaning = (
        f"The model was as unsure as if it had to pick each next token from <b>{perplexity}</b> "
        "equally likely ones."
    )
    if result["perplexity"] == math.inf:
        meaning = "The model gave part of this text zero probability."
    return (
        f"<header><h1>Perplexity for <bdi>{model}</bdi></h1>"
        f'<p class="ps-big">{perplexity}</p>'
        f"<p>{meaning} Lower is better.</p>"
        f'<p class="ps-interval">{interval}</p>{said}</header>'
    )


def _bits(result: dict) -> str:
    if "bits_per_original_byte" in result:
        return f"{number(result['bits_per_original_byte'])} bits per byte of the original"
    return f"{number(result['bits_per_byte'])} bits per byte"


def reading_view(reading: Reading, place: int) -> str:
    """Show a text coloured by the surprisal of its tokens, their panel, and its windows.

    Its pieces are referenced by its place in the report, from 1.
    """
    segments, text = text_segments(reading)
    pieces = [text[segment.start : segment.end] for segment in segments]
    nll = reading.tokens["nll"]
    colours = [piece_colour(nll, segment, piece) for segment, piece in zip(segments, pieces)]
    data, name = token_data(reading, segments), reading.name
    if reading.perplexity is not None and reading.result["num_texts"] > 1:
        name += f": {number(reading.perplexity)}"
    legend = ""
    if place == 1:
        boxes = "".join(
            f'<li><span class="ps-box b{n}">{label}</span><small>{likely}</small></li>'
            for n, (label, likely) in enumerate(zip(LABELS, ODDS))
        )
        legend = f'<div class="ps-legend"><ul>{boxes}</ul></div>'
    return (
        f'{_title(name)}<section class="ps-view" id="text-{place}" data-view="reading" '
        f"data-payload={payload(data)}>{_story(reading)}{legend}"
        f"{text_pair(pieces, colours, 'token', 'what the model expected there')}"
        f"{_windows(reading)}</section>"
    )


def _story(reading: Reading) -> str:
    worst = next(iter(most_surprising([reading], 1)), None)
    if worst is None:
        return ""
    expected = ""
    if worst.expected:
        expected = f" The model expected “<em>{escape(worst.expected[0])}</em>”."
    return (
        '<p class="ps-story">Most surprising word: <button type="button" class="ps-word" '
        f'data-piece="{worst.piece}"><span class="{bits_colour(worst.nll / math.log(2))}">'
        f"{escape(worst.word)}</span></button>, {odds(worst.nll)}.{expected}</p>"
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


def measurements(results: Sequence[dict]) -> str:
    """Tabulate the results of several settings, with a curve if one number varies."""
    if not results:
        return ""
    good = [result for result in results if "error" not in result]
    varying = [key for key in SETTINGS if len({str(result.get(key)) for result in results}) > 1]
    rows = ""
    for result in results:
        cells = "".join(f"<td>{escape(result.get(key, '–'))}</td>" for key in varying)
        if "error" in result:
            cells += f'<td colspan="3" class="ps-none">{escape(result["error"])}</td>'
        else:
            ratio = result.get("ratio_to_first")
            changed = change(ratio) if ratio and ratio["ratio"] is not None else ""
            bits = _bits(result).removesuffix(" bits per byte")
            cells += f"<td>{number(result['perplexity'])}</td><td>{changed}</td><td>{bits}</td>"
        rows += f"<tr>{cells}</tr>"
    names = "".join(f'<th scope="col">{SETTINGS[key]}</th>' for key in varying)
    table = (
        f'<table class="ps-table"><thead><tr>{names}<th scope="col">Perplexity</th>'
        '<th scope="col">Change<small>against the first, 95 % interval</small></th>'
        f'<th scope="col">Bits per byte</th></tr></thead><tbody>{rows}</tbody></table>'
    )
    drawn = len(varying) == 1 and varying != ["protocol"] and len(good) > 1
    is_finite = all(math.isfinite(result["perplexity"]) for result in good)
    curve = setting_curve(good, varying[0]) if drawn and is_finite else ""
    return f"<section><h2>Effect of the setting</h2>{curve}{table}</section>"


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


# --- in a notebook -----------------------------------------------------------------------------------


class Shown:
    """A view of results: the last value of a cell, or a file.

    A notebook shows it in a frame of its own, so that its style and the notebook's are apart.
    """

    def __init__(self, html: str):
        self.html = html

    def _repr_html_(self) -> str:
        return (
            f'<iframe srcdoc="{escape(self.html)}" sandbox="allow-scripts" title="Coloured text" '
            f'style="width: 100%; height: {HEIGHT}px; border: 0"></iframe>'
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it as a self-contained HTML file; if that fails, a former one is unchanged."""
        with (
            replaced(os.fspath(path)) as place,
            open(place, "w", encoding="utf-8", newline="") as file,
        ):
            file.write(self.html)


def show(
    results: dict,
    texts: str | Sequence[str],
    contexts: str | Sequence[str] | None = None,
) -> Shown:
    """Colour texts by a result of `compute`, with a panel for each token.

    Args:
        results: of `compute` with `return_token_scores=True`; with `["top5"]` the panel says what the
            model expected too.
        texts: the ones that were scored, in their order.
        contexts: as in `compute`.

    Raises:
        ValueError: the results have no token scores, or are of other texts.
    """
    scores = results.get("token_scores")
    if scores is None:
        raise ValueError(
            "`results` must have token scores to be shown. Compute them with "
            "return_token_scores=['top5']."
        )
    wholes, begins = texts_as_read(results, scores, texts, contexts)
    names = [f"Text {number}" for number in range(1, len(wholes) + 1)] if len(wholes) > 1 else [""]
    model, own = results["model_name"], own_perplexities(results, len(wholes))
    readings = [
        Reading(whole, tokens, results, model, begin, name, perplexity)
        for whole, tokens, begin, name, perplexity in zip(wholes, scores, begins, names, own)
    ]
    readings, pairs, notes = list(within(readings)), [], []
    if sum(map(len, wholes)) > SHOWN:
        notes.append(f"The numbers are of all texts; the first {SHOWN:,} characters are shown.")
    if "comparison" in results:
        models = (model, results["comparison"].get("reference") or "the reference")
        pairs = [pair_of(reading, place, models) for place, reading in enumerate(readings)]
        readings = []
    return Shown(report(results, readings, pairs, notes=notes))


def texts_as_read(
    results: dict,
    scores: list[dict],
    texts: str | Sequence[str],
    contexts: str | Sequence[str] | None,
) -> tuple[list[str], list[int]]:
    """Return the scored texts as the model read them, and the offset at which each begins.

    Those are chats as they were written, detokenized texts, texts after their contexts, or joined texts.

    Args:
        scores: `token_scores` or `word_scores` of the results.
    """
    texts = [texts] if isinstance(texts, str) else list(texts)
    wholes = texts
    if "texts_as_read" in results:
        wholes = results["texts_as_read"]
    elif contexts is not None:
        before = [contexts] * len(texts) if isinstance(contexts, str) else contexts
        wholes = [context + text for context, text in zip(before, texts)]
    elif (join := PROTOCOLS[results["protocol"]].join) is not None:
        wholes = ["".join(texts) if join == "tokens" else join.join(texts)]
    if len(scores) != len(wholes):
        raise ValueError(
            f"`texts` must be as many as `results` has scores of, {len(scores)}, got {len(wholes)}."
        )
    # The digest of texts that are scored in part is one of their parts too, or of texts that were converted.
    is_as_given = not {"num_context_tokens", "texts_as_read"} & results.keys()
    if is_as_given and str(TextsDigest.of(texts)) != results["texts_digest"]:
        raise ValueError(
            "`texts` must be the ones that `results` are of, in their order: these have another digest."
        )
    for whole, tokens in zip(wholes, scores):
        reach = max((offset[1] for offset in tokens["offsets"] if offset), default=0)
        if reach > len(whole):
            raise ValueError(
                "`texts` must be the ones that `results` are of, with the `contexts` before them: tokens "
                f"reach to character {reach}, but there are {len(whole)}."
            )
    begins = [0] * len(wholes)
    if contexts is not None:
        begins = [len(whole) - len(text) for whole, text in zip(wholes, texts)]
    return wholes, begins
