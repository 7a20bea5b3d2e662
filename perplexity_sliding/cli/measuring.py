"""Measure with the metric: shard by shard, or several protocols, windows or strides at once."""

import argparse
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from ..finding import wikitext
from ..views.reading import SHOWN, Reading, own_perplexities
from . import sharding
from .messages import in_options
from .options import METRIC_ARGUMENTS, NONE, OF_REFERENCE, WITHOUT_ADAPTER, as_list, stored_options
from .parts import Part, merge_totals, read_parts
from .progress import Progress
from .reading import ReadText, Text
from .rows import flat
from .spooling import Spool
from .tables import AXES, signature_fields

# Default of --shard-characters.  A character takes PART_WEIGHT times the memory if tokens or words
# have rows, and as much again for each alternative.
SHARD_CHARACTERS = 10_000_000
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
        measurements: in a comparison, a result or an `error` for each measurement.  In a grid, each
            has the `name` of its model, and its `text` if FILEs are measured separately.
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

    texts: Spool[dict] = field(default_factory=Spool)
    corpus: dict | None = None
    compared: str | None = None
    axes: Sequence[str] = ()
    reference: str | None = None
    measurements: list[dict] = field(default_factory=list)
    parts: Spool[tuple[ReadText, dict]] = field(default_factory=Spool)
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
    evaluator = given.pop("evaluator")
    if evaluator is not None:
        rule = {} if args.key_tokens == "longppl" else args.key_tokens
        given["key_tokens"] = rule | {"evaluator": evaluator}
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
        texts = corpora[0]
        if args.is_grid:
            names = args.files if args.takes_each_file else [None]
            report = scoring.compare_all(list(zip(names, corpora)))
        elif args.reference or args.models[1:]:
            report = scoring.compare_models(texts)
        else:
            report = scoring.compare(texts) if args.compares else scoring.score(texts)
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
    rows = sorted((row for part in parts for row in part["rows"]), key=lambda row: row["place"])
    num_refused = sum("error" in row for row in rows)
    if args.carries_columns and len(totals.squares) > len(rows) - num_refused:
        raise ValueError(
            f"--format {args.format} has a row for every text, but parts do not store the rows of "
            "tables, which could be as large as the corpus. Use --format text, markdown, latex or "
            "json, or score without --part."
        )
    texts = [{key: row[key] for key in row if key != "place"} for row in rows]
    num_bytes = [sum(sizes) for sizes in zip(*(part["num_bytes"] for part in parts))]
    corpus = with_original_bytes(totals.result(), *num_bytes)
    return Report(
        texts=list(map(flat, texts)) if args.carries_columns else texts,
        corpus=corpus,
        num_empty=parts[0]["num_empty"],
        num_refused=num_refused,
        num_forward_tokens=corpus["num_forward_tokens"],
        cost={"num_forward_tokens": corpus["num_forward_tokens"]},
        options=parts[0]["options"],
    )


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
        self.counts: dict[int, int] = {}  # --word-counts, by the text's id()
        self.room = SHOWN if args.show or args.html else 0  # characters left to show

    @property
    def joins(self) -> bool:
        """Return whether texts are joined, so that empty ones count too."""
        each = all(protocol.scores_each_text for protocol in self.protocols)
        return self.args.separator is not None or not each

    def scores_each_text(self, protocol) -> bool:
        """Return whether a protocol scores each text separately."""
        return protocol.scores_each_text and self.args.separator is None

    @property
    def lists_texts(self) -> bool:
        """Return whether the output lists a number for each row of a table."""
        return self.part is not None or self.args.format == "json"

    @property
    def shard_size(self) -> float:
        """Return the characters in a shard; infinite if all texts are needed at once."""
        if self.joins or self.args.context_lengths == "doubling":  # depends on the longest text
            return math.inf
        if self.args.shard_characters is not None:
            return self.args.shard_characters
        if not self.args.unit and not self.room:
            return SHARD_CHARACTERS
        num_alternatives = ALTERNATIVES if self.room else self.args.num_alternatives or 0
        return SHARD_CHARACTERS // (PART_WEIGHT * (1 + num_alternatives))

    def score(self, texts: Iterator[Text]) -> Report:
        """Score shard after shard; report the results of a single run."""
        totals = long_totals = None
        texts = self.without_empty(texts)
        if self.args.word_counts:
            texts = self.with_counts(list(texts))
        if self.part is not None:
            self.check_part()
            texts = self.part.take(texts)
        for shard in sharding.cut_into_shards(texts, self.shard_size):
            self.progress.begin_part(sum(text.share for text in shard))
            result = self.score_shard(shard)
            self.progress.end_part()
            if result is not None:
                shard_totals = result.pop("totals")
                if not self.lists_texts:
                    del result["perplexities"], result["num_tokens_per_text"]
                    shard_totals = shard_totals.pooled()
                totals = shard_totals if totals is None else totals + shard_totals
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
        self.report.num_forward_tokens = self.report.corpus["num_forward_tokens"]
        return self.report

    def with_counts(self, texts: list[Text]) -> list[Text]:
        """Assign --word-counts to the texts.

        Raises:
            ValueError: the numbers of counts and texts differ.
        """
        counts = self.arguments.pop("word_counts")
        if len(counts) != len(texts):
            raise ValueError(
                f"--word-counts must have one number per text, got {len(counts)} for "
                f"{len(texts)} text{'s' * (len(texts) > 1)}."
            )
        self.counts = dict(zip(map(id, texts), counts))
        return texts

    def check_part(self) -> None:
        """Refuse to divide a stream of joined texts into parts."""
        if self.joins:
            name = self.protocols[0].name
            raise ValueError(
                f"--part cannot be combined with --protocol={name}, which joins the texts: its windows "
                "run from text to text, and parts would give a different number. Score them in one "
                "run; torchrun distributes its windows."
            )

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

    def without_empty(self, texts: Iterable[Text]) -> Iterator[Text]:
        """Skip and count empty rows if each text is scored separately.

        If words of the original are counted, a row without words is empty too.
        """
        for text in texts:
            if self.joins or not self.is_empty(text):
                yield text
            else:
                self.report.num_empty += 1

    def is_empty(self, text: Text) -> bool:
        """Return whether a text has nothing to score."""
        words = text.text.strip() if self.args.detokenize else text.text
        return not words and text.error is None

    def score_shard(self, texts: list[Text]) -> dict | None:
        """Score texts together; return None if none of them can be scored."""
        errors = {id(text): text.error for text in texts if text.error is not None}
        result, results = None, iter(())
        while len(errors) < len(texts):
            good = [text for text in texts if id(text) not in errors]
            try:
                wordings = self.wordings(good, self.protocols[0])
                result = self.compute(good, wordings)
                text_totals = result.pop("text_totals")
                if self.part is not None:
                    self.part.add(good, text_totals)
                results = self.of_each(good, wordings, text_totals)
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

    def compute(self, texts: list[Text], wordings: list[str]) -> dict:
        """Call the metric; normalise detokenized texts by their originals."""
        arguments = self.arguments | {"return_totals": "texts"}
        if self.args.unit:
            words = [text.words for text in texts] if self.args.words_column else self.args.words
            arguments |= {"return_token_scores": self.args.tokens, "words": words}
        arguments |= self.for_showing()
        result = self.metric.compute(
            predictions=wordings, **arguments, **self.of_texts(texts, self.protocols[0])
        )
        scored = self.as_scored(texts, wordings, result.pop("chats_as_written", None))
        token_scores = result.pop("token_scores", None)
        if self.args.unit:
            of_unit = token_scores if self.args.tokens else result.pop("word_scores")
            for of_text in zip(scored, of_unit):
                self.report.parts.append(of_text)
        self.keep_shown(scored, token_scores, result)
        return result

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
        alone = first.scores_each_text and self.args.separator is None
        if alone or len(texts) == 1:
            between = self.args.context_separator or ""
            contexts = [text.context + between if text.context else "" for text in texts]
            return [
                ReadText(text.name, context + wording, len(context), text.carried)
                for text, context, wording in zip(texts, contexts, wordings)
            ]
        join = first.join if self.args.separator is None else self.args.separator
        size = first.texts_joined or len(wordings)
        parts = [wordings[at : at + size] for at in range(0, len(wordings), size)]
        joined = [("" if join == "tokens" else join).join(part) for part in parts]
        return [ReadText("all together", text) for text in joined]

    def of_texts(self, texts: list[Text], protocol) -> dict:
        """Return the metric's arguments that have one entry per text."""
        arguments = {}
        if any(text.context is not None for text in texts):
            arguments["contexts"] = [text.context or "" for text in texts]
        if self.args.detokenize:
            arguments["word_counts"] = [protocol.count_words(text.text) for text in texts]
            tools_own = protocol.detokenize
            arguments["detokenizer"] = tools_own.__name__ if tools_own else "wikitext"
        elif self.counts:
            arguments["word_counts"] = [self.counts[id(text)] for text in texts]
        if self.args.detokenizer:
            arguments["detokenizer"] = self.args.detokenizer
        return arguments

    def wordings(self, texts: list[Text], protocol) -> list[str]:
        """Return the texts or chats to score; with --detokenize, prose by the tool's rules."""
        if not self.args.detokenize:
            return [text.chat or text.text for text in texts]
        if any(text.chat for text in texts):
            raise ValueError("--detokenize must be left out with chats.")
        detokenize = protocol.detokenize or wikitext.detokenize
        return [detokenize(text.text) for text in texts]

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
            arguments = self.arguments | self.of_texts([text], self.protocols[0])
            predictions = self.wordings([text], self.protocols[0])
            result = self.metric.compute(predictions=predictions, **arguments)
            return with_original_bytes(result, *self.count_bytes([text], predictions))
        except ValueError as error:
            return {"error": in_options(error)}

    def count_bytes(self, texts: list[Text], wordings: list[str]) -> tuple[int, int]:
        """Count the UTF-8 bytes of detokenized texts and of their originals."""
        if not self.args.detokenize:
            return 0, 0
        return sum(len(wording.encode()) for wording in wordings), sum(
            len(t.text.encode()) for t in texts
        )

    def read_all(self, texts: Iterator[Text]) -> list[Text]:
        """Return the readable texts; add a row with the error for each other one."""
        good = []
        for text in self.without_empty(texts):
            if text.error is None:
                good.append(text)
            else:
                self.report.num_refused += 1
                self.report.texts.append(described(text) | {"error": text.error})
        if not good:
            error = next((row["error"] for row in self.report.texts), None)
            raise ValueError(error or "All texts are empty.")
        return good

    def compare_models(self, texts: Iterator[Text]) -> Report:
        """Score the texts with each model and the reference, if any; an error becomes a row."""
        good = self.read_all(texts)
        protocol = self.protocols[0]
        predictions = self.wordings(good, protocol)
        is_drawn = self.args.plot is not None and self.args.reference is not None
        more = {"return_token_scores": self.args.tokens or is_drawn} | self.for_showing()
        more["return_totals"] = not self.args.reference
        self.report.compared = "models"
        if self.args.reference:
            [self.report.reference] = short_names([self.args.reference])
        names = model_names(self.args)
        totals = []
        for model_id, name in zip(self.args.models, names):
            self.progress.begin_part(1 / len(self.args.models))
            row = {"name": name}
            try:
                row |= self.metric.compute(
                    predictions=predictions,
                    **(self.arguments | more | {"model_id": model_id}),
                    **self.of_texts(good, protocol),
                )
                if self.scores_each_text(protocol):
                    row = with_original_bytes(row, *self.count_bytes(good, predictions))
                totals.append((row, row.pop("totals", None)))
                written = row.pop("chats_as_written", None)
                self.report.scored = self.as_scored(good, predictions, written)
                self.report.num_forward_tokens += row["num_forward_tokens"]
                self.keep_shown(self.report.scored, row.get("token_scores"), row)
            except (ValueError, TypeError) as error:
                row["error"] = in_options(error)
                self.report.num_refused += 1
            self.progress.end_part()
            self.report.measurements.append(row)
        if not self.args.reference and len(totals) > 1:
            add_model_ratios(totals)
        if not self.report.results:
            raise ValueError(self.report.measurements[0]["error"])
        if self.args.tokens:
            for of_text in zip(self.report.scored, self.report.results[0]["token_scores"]):
                self.report.parts.append(of_text)
        return self.report

    def compare_all(self, corpora: Sequence[tuple[str | None, Iterator[Text]]]) -> Report:
        """Measure each corpus with each model and setting; an error becomes a row.

        Args:
            corpora: names and texts; the name is None for a single corpus.

        Raises:
            ValueError: every measurement is refused.
        """
        self.report.compared = "grid"
        keys = [AXES[axis] for axis in self.args.axes if axis in ("protocol", "window", "stride")]
        named = [(name, list(texts)) for name, texts in corpora]
        self.progress.scale = 1 / (len(named) * len(self.args.models))
        totals: dict[tuple, list[tuple[dict, object]]] = {}
        for number, (model_id, label) in enumerate(zip(self.args.models, model_names(self.args))):
            for file, texts in named:
                where = {"name": label} | ({} if file is None else {"text": file})
                for row in self.measure_alone(model_id, texts, is_first=number == 0):
                    row = where | row
                    if "error" not in row:
                        setting = (file, *(row[key] for key in keys))
                        totals.setdefault(setting, []).append((row, row.pop("totals")))
                    self.report.measurements.append(row)
        if not self.report.results:
            raise ValueError(self.report.measurements[0]["error"])
        for measured in totals.values():
            add_model_ratios(measured)
        return self.report

    def measure_alone(self, model_id: str, texts: list[Text], is_first: bool) -> list[dict]:
        """Measure one corpus with one model; return a result or an `error` for each setting.

        Args:
            is_first: whether to report problems of the texts.
        """
        args = argparse.Namespace(**vars(self.args) | {"model_id": model_id, "models": [model_id]})
        part = Scoring(self.metric, args, self.progress)
        part.arguments["return_totals"] = True
        done = self.progress.parts_done
        found = part.report
        try:
            part.compare(iter(texts))
        except (ValueError, TypeError) as error:
            reason = in_options(error)
            refused = [{"protocol": protocol.name, "error": reason} for protocol in self.protocols]
            found.measurements = found.measurements or refused
            found.num_refused += len(found.measurements)
            self.progress.parts_done = done + self.progress.scale
        report = self.report
        report.num_forward_tokens += found.num_forward_tokens
        report.num_refused += found.num_refused
        if is_first:
            for row in found.texts:
                report.texts.append(row)
            report.num_empty += found.num_empty
            report.keeps_empty |= found.keeps_empty
        else:
            report.num_refused -= len(found.texts)  # counted under the first model
        return found.measurements

    def compare(self, texts: Iterator[Text]) -> Report:
        """Measure several settings at once; an error becomes a row."""
        good = self.read_all(texts)
        self.report.compared = "settings"
        entries = {}
        if self.args.word_counts:
            good = self.with_counts(good)
        filled = [text for text in good if not self.is_empty(text)]
        if any(map(self.scores_each_text, self.protocols)):
            self.report.num_empty += len(good) - len(filled)
            self.report.keeps_empty = self.joins
        self.groups = self.grouped(len(filled) < len(good))
        for protocols in self.groups:
            self.progress.begin_part(len(protocols) / len(self.protocols))
            each = all(map(self.scores_each_text, protocols))
            entries |= self.compare_group(filled if each else good, protocols)
            self.progress.end_part()
        rows = [row for protocol in self.protocols for row in entries[protocol.name]]
        self.without_other_ratios(rows, entries)
        self.report.measurements = rows
        if all("error" in row for row in rows):
            raise ValueError(rows[0]["error"])
        if self.arguments.get("protocol") != "all":
            self.report.num_refused += sum("error" in row for row in rows)
        return self.report

    def without_other_ratios(self, rows: list[dict], entries: dict[str, list[dict]]) -> None:
        """Remove the ratios of groups whose first result is not the first of all."""
        first = next((row for row in rows if "error" not in row), None)
        for protocols in self.groups:
            of_group = [row for protocol in protocols for row in entries[protocol.name]]
            if not any(row is first for row in of_group):
                for row in of_group:
                    row.pop("ratio_to_first", None)

    def grouped(self, has_empty: bool) -> list[list]:
        """Group protocols that share a call: the same texts, wording and count of words.

        Args:
            has_empty: whether there are empty texts, which only joining protocols can read.
        """
        groups: dict[tuple, list] = {}
        for protocol in self.protocols:
            wording = (protocol.detokenize, protocol.count_words) if self.args.detokenize else ()
            key = (*wording, has_empty and self.scores_each_text(protocol))
            groups.setdefault(key, []).append(protocol)
        return list(groups.values())

    def compare_group(self, texts: list[Text], protocols: Sequence) -> dict[str, list[dict]]:
        """Return the measurements of a group of protocols, by the protocol's name."""
        named = {"protocol": [protocol.name for protocol in protocols]}
        wordings = self.wordings(texts, protocols[0])
        try:
            result = self.metric.compute(
                predictions=wordings,
                **(self.arguments | named | self.for_showing()),
                **self.of_texts(texts, protocols[0]),
            )
        except ValueError as error:
            if len(self.groups) == 1:
                raise
            reason = in_options(error)
            return {p.name: [{"protocol": p.name, "error": reason}] for p in protocols}
        self.report.num_forward_tokens += result["num_forward_tokens"]
        written = result.pop("chats_as_written", None)
        if protocols[0] is self.protocols[0] and "error" not in result["measurements"][0]:
            first = result["measurements"][0]
            scored = self.as_scored(texts, wordings, written)
            self.keep_shown(scored, first.get("token_scores"), first)
        for entry in result["measurements"]:
            entry.pop("token_scores", None)
        entries: dict[str, list[dict]] = {}
        sizes = self.count_bytes(texts, wordings)
        for entry in result["measurements"]:
            if "error" in entry:
                entry["error"] = in_options(entry["error"])
            elif self.scores_each_text(self.metric.protocols[entry["protocol"]]):
                entry = with_original_bytes(entry, *sizes)
            entries.setdefault(entry["protocol"], []).append(entry)
        return entries


def add_model_ratios(measured: Sequence[tuple[dict, object]]) -> None:
    """Add the paired ratio to the first model, if both read the same tokens.

    Args:
        measured: results of one corpus in one setting, each with its totals.
    """
    from ..results.totals import ratio_of_perplexities

    (first, first_totals), *others = measured
    for result, totals in others:
        if tokenizer_of(result) == tokenizer_of(first):
            result["ratio_to_first_model"] = ratio_of_perplexities(totals, first_totals)


def tokenizer_of(result: dict) -> str:
    return signature_fields(result)["tokenizer"]


def model_names(args: argparse.Namespace) -> list[str]:
    """Return the names of the models in the output: the labels, or short names."""
    return args.label or short_names(args.models)


def short_names(models: list[str]) -> list[str]:
    """Return the last part of each model's name, or the whole name if that is ambiguous."""
    short = [os.path.basename(model.rstrip("/")) or model for model in models]
    return [name if short.count(name) == 1 else model for name, model in zip(short, models)]


def described(text: Text) -> dict:
    """Return the keys that identify a text's result."""
    carried = {"carried": text.carried} if text.carried else {}
    carried |= {} if text.place is None else {"place": text.place}
    return {"name": text.name} | ({} if text.row is None else {"row": text.row}) | carried


def with_original_bytes(result: dict, num_bytes: int, num_original: int) -> dict:
    """Add the bits per byte of the texts before detokenization."""
    if not num_original:  # not detokenized, or joined with separators unknown here
        return result
    per_original_byte = result["bits_per_byte"] * num_bytes / num_original
    return result | {"bits_per_original_byte": per_original_byte}


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
