"""Measure with the metric: one corpus shard by shard, or each model, file and setting of a comparison."""

import argparse
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from ..errors import wording_of
from ..finding import wikitext
from ..views import SHOWN, Reading, own_perplexities
from .messages import in_options, list_some
from .options import METRIC_ARGUMENTS, NONE, OF_REFERENCE, WITHOUT_ADAPTER, as_list, stored_options
from .parts import Part, merge_totals, read_parts
from .progress import Progress
from .reading import ReadText, Text
from .rows import flat
from .spooling import Spool
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
        num_forward_tokens: tokens read by the model.
        kept: output of --part.
        cost: seconds, tokens per second and peak memory.
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
    num_forward_tokens: int = 0
    kept: str | None = None
    cost: dict = field(default_factory=dict)
    options: dict = field(default_factory=dict)

    @property
    def results(self) -> list[dict]:
        """The results over all texts, without refused measurements."""
        corpus = [] if self.corpus is None else [self.corpus]
        return corpus + [result for result in self.measurements if "error" not in result]


@dataclass(frozen=True)
class Metric:
    """The metric without evaluate, which is slow to import.

    Attributes:
        compute: computes, and keeps named models open for the next call.
        protocols: rows of the protocols, by name.
        default_protocol: name of the default protocol.
        citation: BibTeX.
    """

    compute: Callable[..., dict]
    protocols: dict
    default_protocol: str
    citation: str


def load_metric(args: argparse.Namespace) -> Metric:
    """Import the engine and its slow libraries."""
    import huggingface_hub
    import transformers

    from .. import about, protocols
    from .. import api as call
    from ..engines import sources as model_source

    transformers.logging.disable_progress_bar()
    if not args.hides_progress and sys.stderr.isatty():
        huggingface_hub.utils.enable_progress_bars()  # a download may take long
    models = model_source.OpenModels()
    return Metric(
        lambda **arguments: call.compute_with(models, arguments),
        protocols.PROTOCOLS,
        protocols.DEFAULT_PROTOCOL,
        about.CITATION,
    )


def metric_arguments(args: argparse.Namespace) -> dict:
    """Return the metric's arguments from the options that were given."""
    given = {name: getattr(args, name) for name in METRIC_ARGUMENTS}
    if args.tokenizer is not None:
        given["tokenizer"] = load_tokenizer(args.tokenizer, given.pop("tokenizer_kwargs") or {})
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


def load_tokenizer(name: str, settings: dict):
    import transformers

    try:
        return transformers.AutoTokenizer.from_pretrained(name, **settings)
    except (OSError, ValueError) as error:
        raise ValueError(f"--tokenizer {name} could not be loaded: {error}") from error


def measure(
    metric, corpora: Sequence[Iterator[Text]], args: argparse.Namespace, progress: Progress
) -> Report:
    """Score the texts with the options of the command line.

    Args:
        corpora: all texts; with --columns text, those of each FILE.
    """
    started = time.monotonic()
    from ..scoring.runner import bars_hidden

    with bars_hidden():  # the run has one bar
        scoring = Scoring(metric, args, progress)
        is_comparison = args.compares or args.reference or args.models[1:] or args.takes_each_file
        report = scoring.compare(corpora) if is_comparison else scoring.score(corpora[0])
    seconds = time.monotonic() - started
    report.cost = {
        "num_forward_tokens": report.num_forward_tokens,
        "seconds": round(seconds, 3),
        "tokens_per_second": round(report.num_forward_tokens / seconds, 1),
        "peak_memory_bytes": peak_memory(),
    }
    return report


def merge(args: argparse.Namespace) -> Report:
    """Merge the parts of a run into the report of a single run."""
    parts = read_parts(args.files)
    from ..results.totals import Totals

    totals = merge_totals(parts, Totals.from_json)
    found = sorted((row for part in parts for row in part["rows"]), key=lambda row: row["place"])
    num_refused = sum("error" in row for row in found)
    if args.carries_columns and len(totals.squares) > len(found) - num_refused:
        raise ValueError(
            f"--format {args.format} has a row for every text, but parts do not store the rows of "
            "tables, which could be as large as the corpus. Use --format text, markdown, latex or "
            "json, or score without --part."
        )
    num_bytes = [sum(sizes) for sizes in zip(*(part["num_bytes"] for part in parts))]
    corpus = with_original_bytes(totals.result(), *num_bytes)
    report = Report(
        corpus=corpus,
        num_empty=parts[0]["num_empty"],
        num_refused=num_refused,
        num_forward_tokens=corpus["num_forward_tokens"],
        cost={"num_forward_tokens": corpus["num_forward_tokens"]},
        options=parts[0]["options"],
    )
    for row in found:
        row.pop("place")
        report.texts.append(flat(row) if args.carries_columns else row)
    return report


class Scoring:
    """One run of the command line.

    Attributes:
        protocols: rows of the requested protocols.
    """

    def __init__(self, metric, args: argparse.Namespace, progress: Progress):
        self.metric, self.args, self.progress = metric, args, progress
        self.arguments = metric_arguments(args)
        if not progress.hidden:
            self.arguments["callback"] = progress
        named = self.arguments.get("protocol", metric.default_protocol)
        names = list(metric.protocols) if named == "all" else named
        self.protocols = [metric.protocols[name] for name in as_list(names)]
        self.report = Report(axes=args.axes)
        self.part = None if args.part is None else Part(*args.part)
        self.num_bytes = (0, 0)  # with --detokenize: of the prose and of the originals
        self.room = SHOWN if args.show or args.html else 0  # characters left to show

    def scores_each_text(self, protocol) -> bool:
        """Return whether a protocol scores each text separately."""
        return protocol.scores_each_text and self.args.separator is None

    @property
    def joins(self) -> bool:
        """Return whether texts are joined, so that empty ones count too."""
        return not all(map(self.scores_each_text, self.protocols))

    def is_empty(self, text: Text) -> bool:
        """Return whether a text has nothing to score; as WikiText, a row without words neither."""
        words = text.text.strip() if self.args.detokenize else text.text
        return not words and text.error is None

    def without_empty(self, texts: Iterable[Text]) -> Iterator[Text]:
        """Skip and count empty rows if each text is scored separately."""
        for text in texts:
            if self.joins or not self.is_empty(text):
                yield text
            else:
                self.report.num_empty += 1

    # --- one corpus ---

    def score(self, texts: Iterator[Text]) -> Report:
        """Score shard after shard; report the results of a single run."""
        totals = long_totals = None
        texts = self.without_empty(texts)
        if self.part is not None:
            if self.joins:
                raise ValueError(
                    f"--part cannot be combined with --protocol={self.protocols[0].name}, which joins "
                    "the texts: its windows run from text to text, and parts would give a different "
                    "number. Score them in one run; torchrun distributes its windows."
                )
            texts = self.part.take(texts)
        for shard in self.shards(texts):
            self.progress.begin_part(sum(text.share for text in shard))
            result = self.score_shard(shard)
            self.progress.end_part()
            if result is None:
                continue
            of_shard = result.pop("totals")
            totals = of_shard if totals is None else totals + of_shard
            of_shard = result.pop("long_context_totals", None)
            long_totals = of_shard if long_totals is None else long_totals + of_shard
            self.report.corpus = result
        if self.part is not None:
            return self.report_part(totals)
        if totals is None:
            error = next((row["error"] for row in self.report.texts if "error" in row), None)
            raise ValueError(error or "All texts are empty.")
        self.report.corpus |= with_original_bytes(totals.result(), *self.num_bytes)
        if long_totals is not None:
            self.report.corpus |= long_totals.result()
        if self.args.label:
            self.report.corpus = {"name": self.args.label[0]} | self.report.corpus
        self.report.num_forward_tokens = self.report.corpus["num_forward_tokens"]
        return self.report

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

    def report_part(self, totals) -> Report:
        """Report the content of a part: totals, and the rows of files and refused texts."""
        self.part.totals = totals
        if totals is not None:
            self.report.num_forward_tokens = totals.result()["num_forward_tokens"]
        rest = {
            "num_empty": self.report.num_empty,
            "num_bytes": self.num_bytes,
            "options": stored_options(self.args),
        }
        self.report.kept = self.part.to_json(rest | {"rows": list(self.report.texts)})
        return self.report

    def score_shard(self, texts: list[Text]) -> dict | None:
        """Score texts together; return None if none of them can be scored."""
        errors = {id(text): text.error for text in texts if text.error is not None}
        result, results = None, iter(())
        while len(errors) < len(texts):
            good = [text for text in texts if id(text) not in errors]
            try:
                result, results = self.score_together(good)
                break
            except ValueError as error:
                refused = getattr(error, "positions", ())
                if not refused:
                    raise
                # the position among the texts is useless in the row of a text
                reason = in_options(error, positions=())
                errors |= {id(good[place]): reason for place in refused}
        self.report.num_refused += len(errors)
        for text in texts:
            outcome = {"error": errors[id(text)]} if id(text) in errors else next(results)
            if outcome and ("error" in outcome or text.row is None or self.args.carries_columns):
                row = described(text) | outcome
                self.report.texts.append(flat(row) if self.args.carries_columns else row)
        return result

    def score_together(self, texts: list[Text]) -> tuple[dict, Iterator[dict]]:
        """Call the metric; return the result of all texts, and an iterator over that of each."""
        protocol = self.protocols[0]
        arguments = self.arguments | {"return_totals": "texts"}
        if self.args.unit:
            has_words = self.args.words_column or any(text.words for text in texts)
            words = [text.words or of_spaces(text.text) for text in texts] if has_words else True
            arguments |= {"return_token_scores": self.args.tokens}
            arguments |= {"words": words if self.args.words else False}
        wordings = self.wordings(texts, protocol)
        result = self.metric.compute(
            predictions=wordings,
            **(arguments | self.for_showing()),
            **self.of_texts(texts, protocol),
        )
        scored = self.as_scored(texts, wordings, result.pop("chats_as_written", None))
        token_scores = result.pop("token_scores", None)
        if self.args.unit:
            of_unit = token_scores if self.args.tokens else result.pop("word_scores")
            for of_text in zip(scored, of_unit):
                self.report.parts.append(of_text)
        self.keep_shown(scored, token_scores, result)
        text_totals = result.pop("text_totals")
        if self.part is not None:
            self.part.add(texts, text_totals)
        return result, self.of_each(texts, wordings, text_totals)

    def of_each(self, texts: list[Text], wordings: list[str], text_totals: list) -> Iterator[dict]:
        """Yield the result of each text; if texts were joined, score files again separately."""
        if len(text_totals) < len(texts):
            self.report.joined = True
            yield from (self.try_alone(text) if text.row is None else {} for text in texts)
            return
        for text, wording, totals in zip(texts, wordings, text_totals):
            sizes = self.count_bytes([text], [wording])
            self.num_bytes = tuple(a + b for a, b in zip(self.num_bytes, sizes))
            is_shown = text.row is None or self.args.carries_columns
            yield with_original_bytes(totals.result(), *sizes) if is_shown else {}

    def try_alone(self, text: Text) -> dict:
        """Return the result of a single text, or its error."""
        try:
            wordings = self.wordings([text], self.protocols[0])
            arguments = self.arguments | self.of_texts([text], self.protocols[0])
            result = self.metric.compute(predictions=wordings, **arguments)
            return with_original_bytes(result, *self.count_bytes([text], wordings))
        except ValueError as error:
            return {"error": in_options(error)}

    # --- comparisons ---

    def compare(self, corpora: Sequence[Iterator[Text]]) -> Report:
        """Measure each model on each corpus in each setting; an error becomes a row.

        Raises:
            ValueError: every measurement is refused.
        """
        args, report = self.args, self.report
        kinds = (args.is_grid, "grid"), (args.reference or args.models[1:], "models")
        report.compared = next((kind for is_one, kind in kinds if is_one), "settings")
        if args.reference:
            [report.reference] = short_names([args.reference])
        names = args.files if args.takes_each_file else [None]
        read = [(name, self.read_all(texts)) for name, texts in zip(names, corpora)]
        totals: dict[tuple, list[tuple[dict, object]]] = {}
        self.progress.scale = 1 / (len(read) * len(args.models))
        for model_id, model in zip(args.models, model_names(args)):
            for file, texts in read:
                where = {} if report.compared == "settings" else {"name": model}
                where |= {} if file is None else {"text": file}
                found = self.measure_settings(model_id, texts)
                all_fail = all("error" in row for row in found)
                for row in found:
                    row = where | row
                    of_row = row.pop("totals", None)
                    # of all protocols, some do not apply to a short text
                    report.num_refused += "error" in row and (all_fail or args.protocol != "all")
                    report.measurements.append(row)
                    if "error" not in row:
                        keys = ("protocol", "max_length", "stride") if args.compares else ()
                        setting = (file, *(row[key] for key in keys))
                        totals.setdefault(setting, []).append((row, of_row))
        if not report.results:
            raise ValueError(report.measurements[0]["error"])
        if args.models[1:] and not args.reference:
            for measured in totals.values():
                add_model_ratios(measured)
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
        if any(map(self.scores_each_text, self.protocols)) and self.joins:
            num_empty = sum(map(self.is_empty, good))
            self.report.num_empty += num_empty
            self.report.keeps_empty = True
        return good or (errors[0] if errors else "All texts are empty.")

    def measure_settings(self, model_id: str, texts: list[Text] | str) -> list[dict]:
        """Measure one corpus with one model; return a result or an `error` for each setting."""
        if isinstance(texts, str):
            return [self.refused(protocol, texts) for protocol in self.protocols]
        entries: dict[str, list[dict]] = {}
        groups = self.grouped(any(map(self.is_empty, texts)))
        for protocols in groups:
            self.progress.begin_part(len(protocols) / len(self.protocols))
            try:
                found = self.measure_group(model_id, texts, protocols)
            except (ValueError, TypeError) as error:
                reason = reason_of(error, texts)
                if len(groups) == len(self.args.models) == 1 and not self.args.takes_each_file:
                    if getattr(error, "positions", ()):
                        raise ValueError(reason) from error
                    raise
                found = [self.refused(protocol, reason) for protocol in protocols]
            for row in found:
                entries.setdefault(row["protocol"], []).append(row)
            self.progress.end_part()
        rows = [row for protocol in self.protocols for row in entries[protocol.name]]
        first = next((row for row in rows if "error" not in row), None)
        for protocols in groups:  # ratios are to the first of all
            of_group = [row for protocol in protocols for row in entries[protocol.name]]
            if not any(row is first for row in of_group):
                for row in of_group:
                    row.pop("ratio_to_first", None)
        return rows

    def refused(self, protocol, reason: str) -> dict:
        return {"protocol": protocol.name, "error": reason}

    def grouped(self, has_empty: bool) -> list[list]:
        """Group protocols that share a call: the same texts, wording and count of words.

        Args:
            has_empty: whether there are empty texts, which only joining protocols can read.
        """

        def key(protocol) -> tuple:
            wording = (protocol.detokenize, protocol.count_words) if self.args.detokenize else ()
            return (*wording, has_empty and self.scores_each_text(protocol))

        groups: dict[tuple, list] = {}
        for protocol in self.protocols:
            groups.setdefault(key(protocol), []).append(protocol)
        return list(groups.values())

    def measure_group(self, model_id: str, texts: list[Text], protocols: Sequence) -> list[dict]:
        """Return the measurements of a group of protocols with one model."""
        if all(map(self.scores_each_text, protocols)):
            texts = [text for text in texts if not self.is_empty(text)]
        wordings = self.wordings(texts, protocols[0])
        named = {"protocol": [p.name for p in protocols]} if self.args.compares else {}
        is_drawn = self.args.plot is not None and self.args.reference is not None
        asked = {"return_token_scores": self.args.tokens or is_drawn} | self.for_showing()
        asked |= {"return_totals": bool(self.args.models[1:]) and not self.args.reference}
        result = self.metric.compute(
            predictions=wordings,
            **(self.arguments | {"model_id": model_id} | named | asked),
            **self.of_texts(texts, protocols[0]),
        )
        self.report.num_forward_tokens += result["num_forward_tokens"]
        written = result.pop("chats_as_written", None)
        rows = result["measurements"] if self.args.compares else [result]
        if protocols[0] is self.protocols[0] and "error" not in rows[0]:
            self.report.scored = self.as_scored(texts, wordings, written)
            self.keep_shown(self.report.scored, rows[0].get("token_scores"), rows[0])
        sizes = self.count_bytes(texts, wordings)
        for number, row in enumerate(rows):
            if self.args.compares:
                row.pop("token_scores", None)
            if "error" in row:
                row["error"] = reason_of(row["error"], texts)
            elif self.scores_each_text(self.metric.protocols[row["protocol"]]):
                rows[number] = with_original_bytes(row, *sizes)
        return rows

    # --- what both share ---

    def wordings(self, texts: list[Text], protocol) -> list[str]:
        """Return the texts or chats to score; with --detokenize, prose by the tool's rules."""
        if not self.args.detokenize:
            return [text.chat or text.text for text in texts]
        if any(text.chat for text in texts):
            raise ValueError("--detokenize must be left out with chats.")
        detokenize = protocol.detokenize or wikitext.detokenize
        return [detokenize(text.text) for text in texts]

    def of_texts(self, texts: list[Text], protocol) -> dict:
        """Return the metric's arguments that have one entry per text."""
        arguments = {}
        if any(text.context is not None for text in texts):
            arguments["contexts"] = [text.context or "" for text in texts]
        if self.args.detokenize:
            arguments["word_counts"] = [protocol.count_words(text.text) for text in texts]
            tools_own = protocol.detokenize
            arguments["detokenizer"] = tools_own.__name__ if tools_own else "wikitext"
        if self.args.detokenizer:
            arguments["detokenizer"] = self.args.detokenizer
        return arguments

    def count_bytes(self, texts: list[Text], wordings: list[str]) -> tuple[int, int]:
        """Count the UTF-8 bytes of detokenized texts and of their originals."""
        if not self.args.detokenize:
            return 0, 0
        originals = (text.text for text in texts)
        return sum(len(w.encode()) for w in wordings), sum(len(t.encode()) for t in originals)

    def as_scored(
        self, texts: list[Text], wordings: list[str], written: list[str] | None
    ) -> list[ReadText]:
        """Return the texts that token scores refer to: each text, or the joined one.

        Args:
            written: chats as formatted by the template.
        """
        if written is not None:
            return [ReadText(t.name, wording, 0, t.carried) for t, wording in zip(texts, written)]
        if any(text.chat for text in texts):
            return []  # chats are not shown
        first = self.protocols[0]  # the scores shown are those of the first protocol
        if self.scores_each_text(first) or len(texts) == 1:
            between = self.args.context_separator or ""
            contexts = [text.context + between if text.context else "" for text in texts]
            return [
                ReadText(text.name, context + wording, len(context), text.carried)
                for text, context, wording in zip(texts, contexts, wordings)
            ]
        join = first.join if self.args.separator is None else self.args.separator
        size = first.texts_joined or len(wordings)
        parts = [wordings[at : at + size] for at in range(0, len(wordings), size)]
        return [ReadText("all together", ("" if join == "tokens" else join).join(p)) for p in parts]

    def for_showing(self) -> dict:
        """Return the metric's arguments for texts to show, until the limit is reached."""
        if not self.room:
            return {}
        if self.args.reference:  # comparisons always return the likeliest tokens
            return {"return_token_scores": True}
        num_alternatives = max(ALTERNATIVES, self.args.num_alternatives or 0)
        return {"return_token_scores": True, "num_alternatives": num_alternatives}

    def keep_shown(
        self, texts: Sequence[ReadText], token_scores: Sequence[dict] | None, result: dict
    ) -> None:
        """Keep texts and their token scores, until the limit is reached."""
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


def add_model_ratios(measured: Sequence[tuple[dict, object]]) -> None:
    """Add the paired ratio to the first model, if both read the same tokens.

    Args:
        measured: results of one corpus in one setting, each with its totals.
    """
    from ..results.totals import ratio_of_perplexities

    (first, first_totals), *others = measured
    for result, totals in others:
        if signature_fields(result)["tokenizer"] == signature_fields(first)["tokenizer"]:
            result["ratio_to_first_model"] = ratio_of_perplexities(totals, first_totals)


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
