"""Measure with the metric: one corpus shard by shard, or each model, file and setting of a comparison."""

import argparse
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product

from ..arguments import WITHOUT_ADAPTER
from ..errors import ArgumentError, wording_of
from ..protocols import DEFAULT_PROTOCOL, PROTOCOLS
from ..views import SHOWN, Reading, own_perplexities
from .messages import Progress, in_options, list_some
from .options import METRIC_ARGUMENTS, NONE, OF_REFERENCE, as_list, stored_options
from .reading import ReadText, Text
from .rows import Spool, flat
from .stored import Part, read_parts
from .tables import signature_fields

# Characters and texts that are scored together.  A character takes PART_WEIGHT times the memory if
# tokens or words have rows, and as much again for each alternative.
SHARD_CHARACTERS, SHARD_TEXTS = 10_000_000, 10_000
PART_WEIGHT = 10
# Number of predictions in --show and --html.
ALTERNATIVES = 5


@dataclass
class Report:
    """Results of a run.

    Attributes:
        texts: for each text with its own row, its name and result or `error`; flat columns if
            nothing else is shown.
        corpus: the result of all texts together; None in a comparison.
        compared: in a comparison, "settings", "models", or "grid" for both or for separate FILEs.
        axes: the settings in which measurements differ, of `options.AXES`.
        reference: the display name of the reference, if any.
        measurements: in a comparison, a result or an `error` for each measurement, with the `name` of
            its model if there are several, and its `text` if FILEs are measured separately.
        parts: texts whose tokens or words are listed, each with the columns of these.
        scored: the texts of a comparison of models.
        shown: the first texts, for --show and --html.
        has_more_texts: whether there are more texts than these.
        joined: whether several texts were scored as one.
        num_empty: number of skipped empty rows.
        keeps_empty: whether only protocols that score each text skip them.
        num_refused: number of texts, or of given settings, that could not be scored.
        kept: output of --part.
        cost: tokens read by the model, seconds, tokens per second and peak memory.
        options: options of the run whose parts were merged.
    """

    texts: Spool = field(default_factory=Spool)
    corpus: dict | None = None
    compared: str | None = None
    axes: Sequence[str] = ()
    reference: str | None = None
    measurements: list[dict] = field(default_factory=list)
    parts: Spool = field(default_factory=Spool)
    scored: list[ReadText] = field(default_factory=list)
    shown: list[Reading] = field(default_factory=list)
    has_more_texts: bool = False
    joined: bool = False
    num_empty: int = 0
    keeps_empty: bool = False
    num_refused: int = 0
    kept: str | None = None
    cost: dict = field(default_factory=dict)
    options: dict = field(default_factory=dict)

    @property
    def results(self) -> list[dict]:
        """The results over all texts, without refused measurements."""
        corpus = [] if self.corpus is None else [self.corpus]
        return corpus + [result for result in self.measurements if "error" not in result]


def load_metric(args: argparse.Namespace) -> Callable[..., dict]:
    """Import the engine and its slow libraries.

    Returns:
        `compute`, which keeps named models open for the next call.
    """
    import huggingface_hub
    import transformers

    from .. import api
    from ..engines import sources

    transformers.logging.disable_progress_bar()
    if not args.hides_progress and sys.stderr.isatty():
        huggingface_hub.utils.enable_progress_bars()  # a download may take long
    models = sources.OpenModels()
    return lambda **arguments: api.compute_with(models, arguments)


def metric_arguments(args: argparse.Namespace) -> dict:
    """Return the metric's arguments from the options that were given."""
    given = {name: getattr(args, name) for name in METRIC_ARGUMENTS}
    if args.tokenizer is not None:
        import transformers

        try:
            given["tokenizer"] = transformers.AutoTokenizer.from_pretrained(args.tokenizer)
        except (OSError, ValueError) as error:
            raise ValueError(
                f"--tokenizer {args.tokenizer} could not be loaded: {error}"
            ) from error
    if args.reference is not None:
        of_reference = {key: given.pop(name) for name, key in OF_REFERENCE.items()}
        given["reference"] = {k: value for k, value in of_reference.items() if value is not None}
        if args.reference == WITHOUT_ADAPTER:
            given["reference"] = WITHOUT_ADAPTER
    asked = {name: value for name, value in given.items() if value is not None}
    if args.word_correction == NONE:
        asked["word_correction"] = None
    if args.cite or args.format == "json":
        asked["identify"] = True
    return asked


def measure(
    compute: Callable[..., dict],
    corpora: Sequence[Iterator[Text]],
    args: argparse.Namespace,
    progress: Progress,
) -> Report:
    """Score the texts with the options of the command line.

    Args:
        corpora: all texts; with --columns text, those of each FILE.
    """
    started = time.monotonic()
    scoring = Scoring(compute, args, progress)
    is_comparison = args.compares or args.reference or args.models[1:] or args.takes_each_file
    report = scoring.compare(corpora) if is_comparison else scoring.score(corpora[0])
    seconds = time.monotonic() - started
    report.cost = {
        "num_forward_tokens": scoring.num_forward_tokens,
        "seconds": round(seconds, 3),
        "tokens_per_second": round(scoring.num_forward_tokens / seconds, 1),
        "peak_memory_bytes": peak_memory(),
    }
    return report


def merge(args: argparse.Namespace) -> Report:
    """Merge the parts of a run into the report of a single run."""
    first, totals, rows, sizes = read_parts(args.files)
    if args.carries_columns and len(totals.units) > sum("error" not in row for row in rows):
        raise ValueError(
            f"--format {args.format} has a row for every text, but parts do not store the rows of "
            "tables, which could be as large as the corpus. Use --format text, markdown, latex or "
            "json, or score without --part."
        )
    corpus = with_original_bytes(totals.result(), *sizes)
    report = Report(
        corpus=corpus,
        num_empty=first["num_empty"],
        num_refused=sum("error" in row for row in rows),
        cost={"num_forward_tokens": corpus["num_forward_tokens"]},
        options=first["options"],
    )
    for row in rows:
        row.pop("place")
        report.texts.append(flat(row) if args.carries_columns else row)
    return report


class Scoring:
    """One run of the command line.

    Attributes:
        protocols: rows of the requested protocols.
        room: characters left to show.
        num_bytes: with --detokenize, the bytes of the prose and of the originals.
    """

    def __init__(
        self, compute: Callable[..., dict], args: argparse.Namespace, progress: Progress
    ) -> None:
        self.compute, self.args, self.progress = compute, args, progress
        self.arguments = metric_arguments(args) | {"callback": progress}
        named = self.arguments.get("protocol", DEFAULT_PROTOCOL)
        names = list(PROTOCOLS) if named == "all" else as_list(named)
        self.protocols = [PROTOCOLS[name] for name in names]
        self.joins = not all(map(self.scores_each_text, self.protocols))
        self.report = Report(axes=args.axes)
        self.part = None if args.part is None else Part(*args.part)
        self.num_forward_tokens = 0
        self.num_bytes = (0, 0)
        self.room = SHOWN if args.show or args.html else 0

    def scores_each_text(self, protocol) -> bool:
        return protocol.scores_each_text and self.args.separator is None

    def is_empty(self, text: Text) -> bool:
        """Return whether a text has nothing to score; as WikiText, a row without words neither."""
        words = text.text.strip() if self.args.detokenize else text.text
        return not words and text.error is None

    def without_empty(self, texts: Iterable[Text]) -> Iterator[Text]:
        """Skip and count empty rows, unless they are joined with the others."""
        for text in texts:
            if self.joins or not self.is_empty(text):
                yield text
            else:
                self.report.num_empty += 1

    # --- one corpus ---

    def score(self, texts: Iterator[Text]) -> Report:
        """Score shard after shard; report the results of a single run."""
        report, texts = self.report, self.without_empty(texts)
        if self.part is not None:
            if self.joins:
                raise ValueError(
                    f"--part cannot be combined with --protocol={self.protocols[0].name}, which joins "
                    "the texts: its windows run from text to text, and parts would give a different "
                    "number. Score them in one run; torchrun distributes its windows."
                )
            texts = self.part.take(texts)
        summed: dict = {"totals": 0, "long_context_totals": 0}
        for shard in self.shards(texts):
            self.progress.begin_part(sum(text.share for text in shard))
            result = self.score_shard(shard)
            self.progress.end_part()
            for name in summed.keys() & result.keys():
                summed[name] = summed[name] + result.pop(name)
            report.corpus = result or report.corpus
        if summed["totals"]:
            report.corpus |= with_original_bytes(summed["totals"].result(), *self.num_bytes)
            if summed["long_context_totals"]:
                report.corpus |= summed["long_context_totals"].result()
            if self.args.label:
                report.corpus = {"name": self.args.label[0]} | report.corpus
            self.num_forward_tokens = report.corpus["num_forward_tokens"]
        elif self.part is None:
            error = next((row["error"] for row in report.texts if "error" in row), None)
            raise ValueError(error or "All texts are empty.")
        if self.part is not None:
            report.kept = self.part.to_json(
                summed["totals"] or None,
                num_empty=report.num_empty,
                num_bytes=self.num_bytes,
                options=stored_options(self.args),
                rows=list(report.texts),
            )
        return report

    def shards(self, texts: Iterator[Text]) -> Iterator[list[Text]]:
        """Divide texts into runs that fit in memory; all at once where they are needed at once."""
        if self.joins or self.args.context_lengths == "doubling":  # depends on the longest text
            yield from filter(None, [list(texts)])
            return
        room = SHARD_CHARACTERS
        if self.args.unit or self.room:
            num_alternatives = ALTERNATIVES if self.room else self.args.num_alternatives or 0
            room //= PART_WEIGHT * (1 + num_alternatives)
        shard, size = [], 0
        for text in texts:
            if shard and (size + len(text.text) > room or len(shard) >= SHARD_TEXTS):
                yield shard
                shard, size = [], 0
            shard.append(text)
            size += len(text.text)
        if shard:
            yield shard

    def score_shard(self, texts: list[Text]) -> dict:
        """Score texts together, without those that are refused; empty if there are no others."""
        errors = {id(text): text.error for text in texts if text.error is not None}
        result, outcomes = {}, iter(())
        while good := [text for text in texts if id(text) not in errors]:
            try:
                result, outcomes = self.score_together(good)
                break
            except ValueError as error:
                if not getattr(error, "positions", ()) or self.args.separator is not None:
                    raise
                # the position among the texts is useless in the row of a text
                reason = in_options(error, positions=())
                errors |= {id(good[place]): reason for place in error.positions}
        self.report.num_refused += len(errors)
        for text in texts:
            outcome = {"error": errors[id(text)]} if id(text) in errors else next(outcomes)
            if outcome and ("error" in outcome or text.row is None or self.args.carries_columns):
                row = described(text) | outcome
                self.report.texts.append(flat(row) if self.args.carries_columns else row)
        return result

    def score_together(self, texts: list[Text]) -> tuple[dict, Iterator[dict]]:
        """Call the metric; return the result of all texts, and an iterator over that of each."""
        asked: dict = {"return_totals": "texts"}
        if self.args.unit:
            has_words = self.args.words_column or any(text.words for text in texts)
            words = [self.words_of(text) for text in texts] if has_words else True
            asked["return_token_scores"] = self.columns if self.args.tokens else False
            asked["words"] = words if self.args.words else False
        result, scored, sizes = self.call(texts, self.protocols[0], **asked)
        token_scores = result.pop("token_scores", None)
        if self.args.unit:
            of_unit = token_scores if self.args.tokens else result.pop("word_scores")
            for text, read, columns in zip(texts, scored, of_unit):
                for number, word in enumerate(text.words or ()):
                    if word is None:  # an empty row keeps its place
                        for key, column in columns.items():
                            column.insert(number, "" if key == "words" else None)
                self.report.parts.append((read, columns))
        self.keep_shown(scored, token_scores, result)
        text_totals = result.pop("text_totals")
        if self.part is not None:
            self.part.add(texts, text_totals)
        return result, self.of_each(texts, text_totals, sizes)

    def of_each(self, texts: list[Text], text_totals: list, sizes: list) -> Iterator[dict]:
        """Yield the result of each text; if texts were joined, score files again separately."""
        if len(text_totals) == len(texts):
            for text, totals, of_text in zip(texts, text_totals, sizes):
                self.num_bytes = tuple(a + b for a, b in zip(self.num_bytes, of_text))
                is_shown = text.row is None or self.args.carries_columns
                yield with_original_bytes(totals.result(), *of_text) if is_shown else {}
            return
        self.report.joined, self.room = True, 0
        for text in texts:
            if text.row is not None:
                yield {}
                continue
            try:
                result, _, [of_text] = self.call([text], self.protocols[0])
                yield with_original_bytes(result, *of_text)
            except ValueError as error:
                yield {"error": in_options(error)}

    # --- comparisons ---

    def compare(self, corpora: Sequence[Iterator[Text]]) -> Report:
        """Measure each model on each corpus in each setting; an error becomes a row.

        Raises:
            ValueError: every measurement is refused.
        """
        args, report = self.args, self.report
        of_models = args.reference or args.models[1:]
        report.compared = "grid" if args.is_grid else "models" if of_models else "settings"
        if args.reference:
            [report.reference] = short_names([args.reference])
        files = args.files if args.takes_each_file else [None]
        read = [(file, self.read_all(texts)) for file, texts in zip(files, corpora)]
        totals: dict[tuple, list[tuple[dict, object]]] = {}
        self.progress.scale = 1 / (len(read) * len(args.models))
        for (model_id, model), (file, texts) in product(zip(args.models, model_names(args)), read):
            where = {} if report.compared == "settings" else {"name": model}
            where |= {} if file is None else {"text": file}
            found = self.measure_settings(model_id, texts)
            all_fail = all("error" in row for row in found)
            for row in found:
                of_row = row.pop("totals", None)
                report.measurements.append(where | row)
                if "error" not in row:
                    keys = ("protocol", "max_length", "stride") if args.compares else ()
                    setting = (file, *(row[key] for key in keys))
                    totals.setdefault(setting, []).append((report.measurements[-1], of_row))
                elif all_fail or args.protocol != "all":  # some do not apply to a short text
                    report.num_refused += 1
        if not report.results:
            raise ValueError(report.measurements[0]["error"])
        if args.models[1:] and not args.reference:
            from ..results.totals import ratio_of_perplexities

            for (first, first_totals), *others in totals.values():
                tokenizer = signature_fields(first)["tokenizer"]
                for row, of_row in others:
                    if signature_fields(row)["tokenizer"] == tokenizer:
                        ratio = ratio_of_perplexities(of_row, first_totals)
                        row["ratio_to_first_model"] = ratio
        if args.tokens:
            for of_text in zip(report.scored, report.results[0]["token_scores"]):
                report.parts.append(of_text)
        return report

    def read_all(self, texts: Iterator[Text]) -> list[Text] | str:
        """Return the readable texts, or the error if there are none; add a row for each error."""
        good, errors = [], []
        for text in self.without_empty(texts):
            if text.error is None:
                good.append(text)
            else:
                errors.append(text.error)
                self.report.num_refused += 1
                self.report.texts.append(described(text) | {"error": text.error})
        if self.joins and any(map(self.scores_each_text, self.protocols)):
            self.report.num_empty += sum(map(self.is_empty, good))
            self.report.keeps_empty = True
        return good or (errors[0] if errors else "All texts are empty.")

    def measure_settings(self, model_id: str, texts: list[Text] | str) -> list[dict]:
        """Measure one corpus with one model; return a result or an `error` for each setting.

        Protocols share a call if they read the same texts in the same wording.
        """
        has_empty = any(map(self.is_empty, texts)) if isinstance(texts, list) else False
        groups: dict[tuple, list] = {}
        for protocol in self.protocols:
            wording = (protocol.detokenize, protocol.count_words) if self.args.detokenize else ()
            key = (*wording, has_empty and self.scores_each_text(protocol))
            groups.setdefault(key, []).append(protocol)
        is_only = len(groups) == len(self.args.models) == 1 and not self.args.takes_each_file
        entries: dict[str, list[dict]] = {}
        for number, protocols in enumerate(groups.values()):
            self.progress.begin_part(len(protocols) / len(self.protocols))
            try:
                if isinstance(texts, str):
                    raise ValueError(texts)
                found = self.measure_group(model_id, texts, protocols)
            except (ValueError, TypeError) as error:
                if is_only and not getattr(error, "positions", ()):
                    raise
                reason = reason_of(error, texts)
                found = [{"protocol": protocol.name, "error": reason} for protocol in protocols]
            for row in found:
                if number:  # it is to the first of all, which another call has measured
                    row.pop("ratio_to_first", None)
                entries.setdefault(row["protocol"], []).append(row)
            self.progress.end_part()
        return [row for protocol in self.protocols for row in entries[protocol.name]]

    def measure_group(self, model_id: str, texts: list[Text], protocols: Sequence) -> list[dict]:
        """Return the measurements of protocols that share a call."""
        if all(map(self.scores_each_text, protocols)):
            texts = [text for text in texts if not self.is_empty(text)]
        named = {"protocol": [p.name for p in protocols]} if self.args.compares else {}
        result, scored, sizes = self.call(
            texts,
            protocols[0],
            model_id=model_id,
            return_token_scores=self.columns if self.args.tokens else False,
            return_totals=bool(self.args.models[1:]) and not self.args.reference,
            **named,
        )
        self.num_forward_tokens += result["num_forward_tokens"]
        if protocols[0] is self.protocols[0]:
            self.report.scored = scored
            self.keep_shown(scored, result.get("token_scores"), result)
        rows = result["measurements"] if self.args.compares else [result]
        for number, row in enumerate(rows):
            if self.args.compares:
                row.pop("token_scores", None)
            if "error" in row:
                row["error"] = reason_of(row["error"], texts)
            elif self.scores_each_text(PROTOCOLS[row["protocol"]]):
                rows[number] = with_original_bytes(row, *map(sum, zip(*sizes)))
        return rows

    # --- what both share ---

    def separated(self, text: Text) -> str:
        """Return a text with --context-separator before it, if it has a context."""
        return (self.args.context_separator or "") * bool(text.context) + text.text

    def words_of(self, text: Text) -> list:
        """Return the words of a text, or their characters after --context-separator."""
        words = [word for word in text.words or of_spaces(text.text) if word is not None]
        before = len(self.separated(text)) - len(text.text)
        return [w if isinstance(w, str) else [place + before for place in w] for w in words]

    @property
    def columns(self) -> list[str] | bool:
        """The columns of token scores that the options ask for."""
        number = self.args.num_alternatives
        return [f"top{number}"] if number else True

    def call(
        self, texts: list[Text], row, **asked: object
    ) -> tuple[dict, list[ReadText], list[tuple[int, int]]]:
        """Call the metric with texts or chats; with --detokenize, prose by the protocol's rules.

        Args:
            row: that of the protocol.

        Returns:
            the result, the texts that its token scores refer to, and the bytes of each text as it was
            scored and as it was given, which is 0 if it is the same.
        """
        arguments = self.arguments | asked | self.for_showing()
        wordings = [text.chat or self.separated(text) for text in texts]
        if any(text.context is not None for text in texts):
            arguments["contexts"] = [text.context or "" for text in texts]
        sizes = [(0, 0)] * len(texts)
        if self.args.separator is not None:
            if any(text.chat for text in texts):
                raise ValueError("--separator must be left out with chats.")
            wordings = [self.args.separator.join(wordings)]
        detokenizer = self.args.detokenize
        arguments |= {"predictions": wordings, "detokenizer": detokenizer}
        try:
            result = self.compute(**arguments)
        except ArgumentError as error:
            is_row_of_reference = (
                self.args.models[1:] and arguments["model_id"] == self.args.reference
            )
            if not is_row_of_reference or error.wording.argument != "margin":
                raise
            result = self.compute(**arguments | {"margin": None})  # it meets every margin
        as_read = result.pop("texts_as_read", None)
        for one in result.get("measurements", ()):
            one.pop("texts_as_read", None)
        if detokenizer and len(as_read) == len(texts):
            begins = [len(text.context or "") for text in texts]
            as_read = [read[begin:] for read, begin in zip(as_read, begins)]
            sizes = [(len(w.encode()), len(t.text.encode())) for w, t in zip(as_read, texts)]
        return result, self.as_scored(texts, as_read or wordings), sizes

    def for_showing(self) -> dict:
        """Return the metric's arguments for texts to show, until the limit is reached."""
        if not self.room:
            return {}
        if self.args.reference:  # comparisons always return the likeliest tokens
            return {"return_token_scores": True}
        num_alternatives = max(ALTERNATIVES, self.args.num_alternatives or 0)
        return {"return_token_scores": [f"top{num_alternatives}"]}

    def as_scored(self, texts: list[Text], wordings: list) -> list[ReadText]:
        """Return the texts that token scores refer to: each text, or the joined one."""
        if not all(isinstance(wording, str) for wording in wordings):
            return []  # chats whose wording no one asked for
        first = self.protocols[0]  # the scores shown are those of the first protocol
        if self.scores_each_text(first) or len(texts) == 1:
            return [
                ReadText(
                    text.name,
                    (text.context or "") + wording,
                    len(text.context or "") + len(self.separated(text)) - len(text.text),
                    text.carried,
                )
                for text, wording in zip(texts, wordings)
            ]
        join = first.join or ""
        size = first.texts_joined or len(wordings)
        parts = [wordings[at : at + size] for at in range(0, len(wordings), size)]
        return [ReadText("all together", ("" if join == "tokens" else join).join(p)) for p in parts]

    def keep_shown(
        self, texts: Sequence[ReadText], token_scores: Sequence[dict] | None, result: dict
    ) -> None:
        """Keep texts and their token scores for --show and --html, until the limit is reached."""
        if not (self.args.show or self.args.html):
            return
        [model] = short_names([self.args.model_id])
        own = own_perplexities(result, len(texts))
        for text, tokens, perplexity in zip(texts, token_scores or (), own):
            if self.room:
                named = {"name": text.name, "perplexity": perplexity}
                reading = Reading(text.wording, tokens, result, model, text.begin, **named)
                self.report.shown.append(reading.beginning(self.room))
            self.report.has_more_texts |= len(text.wording) > self.room
            self.room = max(0, self.room - len(text.wording))
        self.report.has_more_texts |= token_scores is None


def reason_of(error: object, texts: Sequence[Text]) -> str:
    """Return the message of an error, with the names of the texts that it is about."""
    named = [texts[place].name for place in wording_of(error).positions]
    return in_options(error, positions=()) + (f" ({list_some(named)})" if named else "")


def of_spaces(text: str) -> list[list[int]]:
    """Return the characters of the words between white space."""
    return [list(match.span()) for match in re.finditer(r"\S+", text)]


def model_names(args: argparse.Namespace) -> list[str]:
    """Return the names of the models in the output: the labels, or short names."""
    return args.label or short_names(args.models)


def short_names(models: list[str]) -> list[str]:
    """Return the last part of each model's name, or the whole name if that is ambiguous."""
    short = [os.path.basename(model.rstrip("/")) or model for model in models]
    return [name if short.count(name) == 1 else model for name, model in zip(short, models)]


def described(text: Text) -> dict:
    """Return the keys that identify a text's result."""
    carried = {"carried": text.carried} if text.carried and isinstance(text.carried, dict) else {}
    place = {} if text.place is None else {"place": text.place}
    return {"name": text.name} | ({} if text.row is None else {"row": text.row}) | carried | place


def with_original_bytes(result: dict, num_bytes: int, num_original: int) -> dict:
    """Add the bits per byte of the texts before detokenization, and their interval."""
    if not num_original:  # not detokenized, or joined with separators unknown here
        return result
    scale = num_bytes / num_original
    bounds = result.get("bits_per_byte_interval")
    return result | {
        "bits_per_original_byte": scale * result["bits_per_byte"],
        "bits_per_original_byte_interval": bounds and [scale * bound for bound in bounds],
    }


def peak_memory() -> int | None:
    """Return the peak memory that torch reserved on an accelerator, or that this process used."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.max_memory_reserved()
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
