"""Measure with the metric: one corpus shard by shard, or each model, file and setting of a comparison."""

import argparse
import math
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product

from ..arguments import WITHOUT_ADAPTER
from ..errors import wording_of
from ..protocols import DEFAULT_PROTOCOL, PROTOCOLS, Protocol
from ..views import SHOWN, Reading, own_perplexities
from .messages import Progress, in_options, list_some
from .options import COMPARED, METRIC_ARGUMENTS, NONE, OF_REFERENCE, as_list, stored_options
from .reading import ReadText, Text
from .rows import Spool
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
        texts: for each text with its own row, its name and result or `error`.
        corpus: the result of all texts together; None in a comparison.
        measurements: in a comparison, a result or an `error` for each measurement, with the `name` of
            its model if there are several, and its `text` if FILEs are measured separately.
        parts: texts whose tokens or words are listed, each with the columns of these.
        scored: the texts of a comparison.
        shown: the first texts, for --show and --html.
        num_refused: texts, or given settings, that could not be scored.
        kept: output of --part.
        options: those of the run whose parts were merged.
    """

    texts: Spool = field(default_factory=Spool)
    corpus: dict | None = None
    measurements: list[dict] = field(default_factory=list)
    parts: Spool = field(default_factory=Spool)
    scored: list[ReadText] = field(default_factory=list)
    shown: list[Reading] = field(default_factory=list)
    has_more_texts: bool = False
    joined: bool = False
    num_empty: int = 0
    num_refused: int = 0
    kept: str | None = None
    cost: dict = field(default_factory=dict)
    options: dict = field(default_factory=dict)

    @property
    def results(self) -> list[dict]:
        corpus = [] if self.corpus is None else [self.corpus]
        return corpus + [result for result in self.measurements if "error" not in result]


def load_metric(args: argparse.Namespace) -> Callable[..., dict]:
    """Import the slow libraries; return `compute`, which keeps named models open between calls."""
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
    given = {name: getattr(args, name) for name in METRIC_ARGUMENTS}
    given["detokenizer"] = args.detokenize
    if args.tokenizer is not None:
        import transformers

        try:
            given["tokenizer"] = transformers.AutoTokenizer.from_pretrained(args.tokenizer)
        except (OSError, ValueError) as error:
            raise ValueError(
                f"--tokenizer {args.tokenizer} could not be loaded: {error}"
            ) from error
    of_reference = {key: given.pop(name) for name, key in OF_REFERENCE.items()}
    if args.reference == WITHOUT_ADAPTER:
        given["reference"] = WITHOUT_ADAPTER
    elif args.reference is not None:
        given["reference"] = {k: value for k, value in of_reference.items() if value is not None}
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
    started = time.monotonic()
    scoring = Scoring(compute, args, progress)
    is_comparison = args.compares or args.reference or args.models[1:] or args.takes_each_file
    report = scoring.compare(corpora) if is_comparison else scoring.score(corpora[0])
    seconds = time.monotonic() - started
    report.cost = {
        "num_forward_tokens": scoring.num_forward_tokens,
        "seconds": round(seconds, 3),
        "tokens_per_second": round(scoring.num_forward_tokens / seconds, 1),
    }
    return report


def merge(args: argparse.Namespace) -> Report:
    first, totals, rows, num_bytes = read_parts(args.files)
    if args.carries_columns and len(totals.units) > sum("error" not in row for row in rows):
        raise ValueError(
            f"--format {args.format} has a row for every text, but parts do not store those of tables. "
            "Use --format text, markdown, latex or json, or score without --part."
        )
    corpus = totals.result()
    report = Report(
        corpus=corpus | per_original_byte(corpus, *num_bytes),
        num_empty=first["num_empty"],
        num_refused=sum("error" in row for row in rows),
        cost={"num_forward_tokens": corpus["num_forward_tokens"]},
        options=first["options"],
    )
    for row in rows:
        del row["place"]
        report.texts.append(row)
    return report


class Scoring:
    def __init__(
        self, compute: Callable[..., dict], args: argparse.Namespace, progress: Progress
    ) -> None:
        self.compute, self.args, self.progress = compute, args, progress
        self.arguments = metric_arguments(args) | {"callback": progress}
        named = self.arguments.get("protocol", DEFAULT_PROTOCOL)
        names = list(PROTOCOLS) if named == "all" else as_list(named)
        self.protocols = [PROTOCOLS[name] for name in names]
        self.joins = not all(map(self.scores_each_text, self.protocols))
        self.report = Report()
        self.num_forward_tokens = 0
        self.room = SHOWN if args.show or args.html else 0  # characters left to show

    def scores_each_text(self, protocol: Protocol) -> bool:
        return protocol.scores_each_text and self.args.separator is None

    def is_empty(self, text: Text) -> bool:
        # as WikiText, a row without words has nothing to score either
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
        args, report, texts = self.args, self.report, self.without_empty(texts)
        part = Part(*args.part) if args.part else None
        if part and self.joins:
            raise ValueError(
                f"--part cannot be combined with --protocol={self.protocols[0].name}, which joins the "
                "texts: parts would give another number. torchrun distributes the windows of one run."
            )
        totals, of_contexts, num_bytes = 0, 0, (0, 0)
        for shard in self.shards(part.take(texts) if part else texts):
            self.progress.begin_part(sum(text.share for text in shard))
            result, sizes = self.score_shard(shard)
            self.progress.end_part()
            if not result:
                continue
            num_bytes = tuple(map(sum, zip(num_bytes, *sizes)))
            totals = totals + result.pop("totals")
            of_contexts = of_contexts + result.pop("long_context_totals", 0)
            text_totals = result.pop("text_totals")
            if part:
                part.add([text for text in shard if text.error is None], text_totals)
            report.corpus = result
        if part:
            report.kept = part.to_json(
                totals or None,
                num_empty=report.num_empty,
                num_bytes=num_bytes,
                options=stored_options(args),
                rows=list(report.texts),
            )
        elif not totals:
            error = next((row["error"] for row in report.texts if "error" in row), None)
            raise ValueError(error or "All texts are empty.")
        if totals:
            of_all = totals.result()
            report.corpus |= of_all | per_original_byte(of_all, *num_bytes)
            report.corpus |= of_contexts.result() if of_contexts else {}
            if args.label:
                report.corpus = {"name": args.label[0]} | report.corpus
            self.num_forward_tokens = report.corpus["num_forward_tokens"]
        return report

    def shards(self, texts: Iterator[Text]) -> Iterator[list[Text]]:
        """Divide texts into runs that fit in memory; all at once where they are needed at once."""
        room, most = SHARD_CHARACTERS, SHARD_TEXTS
        if self.joins or self.args.context_lengths == "doubling":  # depends on the longest text
            room = most = math.inf
        elif self.args.unit or self.room:
            num_alternatives = ALTERNATIVES if self.room else self.args.num_alternatives or 0
            room //= PART_WEIGHT * (1 + num_alternatives)
        shard, size = [], 0
        for text in texts:
            if shard and (size + len(text.text) > room or len(shard) >= most):
                yield shard
                shard, size = [], 0
            shard.append(text)
            size += len(text.text)
        if shard:
            yield shard

    def score_shard(self, texts: list[Text]) -> tuple[dict, list[tuple[int, int]]]:
        """Score texts together, and add their rows to the report; refused ones get an `error`."""
        args, report = self.args, self.report
        result, scored, sizes = {}, [], []
        while good := [text for text in texts if text.error is None]:
            asked: dict = {"return_totals": "texts", "words": args.words and self.words_of(good)}
            try:
                result, scored, sizes = self.call(good, **asked)
                break
            except ValueError as error:
                if not getattr(error, "positions", ()) or args.separator is not None:
                    raise
                for place in error.positions:  # which is useless in the row of a text
                    good[place].error = in_options(error, positions=())
        report.num_refused += len(texts) - len(good)
        text_totals = result.get("text_totals", [])
        report.joined |= len(text_totals) < len(good)
        own = iter(zip(text_totals, sizes))
        for text in texts:
            row = described(text)
            if text.error is None and not report.joined:
                totals, size = next(own)
                if text.row is None or args.carries_columns:
                    of_text = totals.result()
                    report.texts.append(row | of_text | per_original_byte(of_text, *size))
            elif text.error is not None:
                report.texts.append(row)
        token_scores, word_scores = result.pop("token_scores", ()), result.pop("word_scores", ())
        self.keep_shown(scored, token_scores, result)
        for text, columns in zip(good, word_scores):
            for number, word in enumerate(text.words or ()):
                if word is None:  # an empty row keeps its place
                    for key, column in columns.items():
                        column.insert(number, "" if key == "words" else None)
        if args.unit:
            for of_text in zip(scored, token_scores if args.tokens else word_scores):
                report.parts.append(of_text)
        return result, sizes

    def words_of(self, texts: Sequence[Text]) -> bool | list[list]:
        """Return the words of texts, or their characters after --context-separator; True if none are given."""
        if not self.args.words_column and not any(text.words for text in texts):
            return True
        given = []
        for text in texts:
            spaced = [list(match.span()) for match in re.finditer(r"\S+", text.text)]
            before = len(self.separated(text)) - len(text.text)
            words = [word for word in text.words or spaced if word is not None]
            given.append([w if isinstance(w, str) else [at + before for at in w] for w in words])
        return given

    # --- comparisons ---

    def compare(self, corpora: Sequence[Iterator[Text]]) -> Report:
        """Measure each model on each corpus in each setting; an error becomes a row, unless all are."""
        args, report = self.args, self.report
        is_named = args.reference or args.models[1:] or args.takes_each_file
        files = args.files if args.takes_each_file else [None]
        read = [(file, self.read_all(texts)) for file, texts in zip(files, corpora)]
        self.progress.scale = 1 / (len(read) * len(args.models))
        for (model_id, model), (file, texts) in product(zip(args.models, model_names(args)), read):
            where = {"name": model} if is_named else {}
            where |= {} if file is None else {"text": file}
            rows = [where | row for row in self.measure_settings(model_id, texts)]
            refused = [row for row in rows if "error" in row]
            # some protocols do not apply to a short text
            if len(refused) == len(rows) or args.protocol != "all":
                report.num_refused += len(refused)
            report.measurements += rows
        if not report.results:
            raise ValueError(report.measurements[0]["error"])
        if args.models[1:] and not args.reference:
            from ..results.totals import ratio_of_perplexities

            firsts: dict[tuple, tuple[dict, object]] = {}
            for row in report.results:
                totals = row.pop("totals")
                setting = (row.get("text"), *(row[key] for key in COMPARED if args.compares))
                first, of_first = firsts.setdefault(setting, (row, totals))
                tokenizers = {signature_fields(one)["tokenizer"] for one in (row, first)}
                if row is not first and len(tokenizers) == 1:
                    row["ratio_to_first_model"] = ratio_of_perplexities(totals, of_first)
        if args.tokens:
            for of_text in zip(report.scored, report.results[0]["token_scores"]):
                report.parts.append(of_text)
        return report

    def read_all(self, texts: Iterator[Text]) -> list[Text]:
        """Return the texts that can be read, and add a row for each of the others; one of them if all are."""
        read = list(self.without_empty(texts))
        good = [text for text in read if text.error is None]
        for text in read:
            if text.error is not None:
                self.report.texts.append(described(text))
        self.report.num_refused += len(read) - len(good)
        if any(map(self.scores_each_text, self.protocols)):
            self.report.num_empty += sum(map(self.is_empty, good))
        return good or read[:1]

    def measure_settings(self, model_id: str, texts: list[Text]) -> list[dict]:
        """Measure one corpus with one model; return a result or an `error` for each setting.

        Protocols that join the texts, empty ones too, have a call of their own if there are any.
        """
        args, found = self.args, []
        groups: dict[bool, list] = {}
        has_empty = any(map(self.is_empty, texts))
        for protocol in self.protocols:
            groups.setdefault(has_empty and self.scores_each_text(protocol), []).append(protocol)
        asked: dict = {"return_totals": bool(args.models[1:]) and not args.reference}
        is_other = args.reference_dtype or args.reference_model_kwargs
        if args.models[1:] and model_id == args.reference and not is_other:
            asked["margin"] = None  # the reference itself meets every margin
        for skips_empty, protocols in groups.items():
            of_group = [text for text in texts if not (skips_empty and self.is_empty(text))]
            if args.compares:
                asked["protocol"] = [protocol.name for protocol in protocols]
            self.progress.begin_part(len(protocols) / len(self.protocols))
            try:
                if not of_group or of_group[0].error:
                    raise ValueError(of_group[0].error if of_group else "All texts are empty.")
                result, scored, _ = self.call(of_group, model_id=model_id, **asked)
                self.num_forward_tokens += result["num_forward_tokens"]
                rows = result["measurements"] if args.compares else [result]
                if protocols[0] is self.protocols[0]:
                    self.report.scored = scored
                    self.keep_shown(scored, result.get("token_scores", ()), result)
            except (ValueError, TypeError) as error:
                rows = [{"protocol": protocol.name, "error": error} for protocol in protocols]
            for row in rows:
                if "error" in row:
                    named = [of_group[n].name for n in wording_of(row["error"]).positions]
                    row["error"] = in_options(row["error"], positions=())
                    row["error"] += f" ({list_some(named)})" if named else ""
                if args.compares:
                    row.pop("token_scores", None)
                if protocols[0] is not self.protocols[0]:
                    row.pop("ratio_to_first", None)  # to the first of another call
            found += rows
            self.progress.end_part()
        names = [protocol.name for protocol in self.protocols]
        return sorted(found, key=lambda row: names.index(row["protocol"]))

    # --- what both share ---

    def separated(self, text: Text) -> str:
        return (self.args.context_separator or "") * bool(text.context) + text.text

    def call(
        self, texts: list[Text], **asked: object
    ) -> tuple[dict, list[ReadText], list[tuple[int, int]]]:
        """Return the result, the texts of its token scores (of the first protocol), and for each text
        its bytes as it was scored and before --detokenize, 0 if these are the same or unknown.
        """
        args = self.args
        # a comparison always returns the likeliest tokens
        number = max(
            args.num_alternatives or 0, ALTERNATIVES if self.room and not args.reference else 0
        )
        asked["return_token_scores"] = (
            [f"top{number}"] if number else bool(args.tokens or self.room)
        )
        wordings: list = [text.chat or self.separated(text) for text in texts]
        contexts = [text.context or "" for text in texts]
        if any(text.context is not None for text in texts):
            asked["contexts"] = contexts
        if args.separator is not None:
            if any(text.chat for text in texts):
                raise ValueError("--separator must be left out with chats.")
            wordings = [args.separator.join(wordings)]
        result = self.compute(**self.arguments | asked | {"predictions": wordings})
        sizes = [(0, 0)] * len(texts)
        for row in [*result.get("measurements", ()), result]:
            wordings = row.pop("texts_as_read", wordings)
            if args.detokenize and "error" not in row and len(wordings) == len(texts):
                wordings = [read[len(before) :] for before, read in zip(contexts, wordings)]
                sizes = [(len(w.encode()), len(t.text.encode())) for w, t in zip(wordings, texts)]
                row |= per_original_byte(row, *map(sum, zip(*sizes)))
        if not all(isinstance(wording, str) for wording in wordings):
            return result, [], sizes  # chats whose wording no one asked for
        first = self.protocols[0]
        if self.scores_each_text(first) or len(texts) == 1:
            scored = []
            for text, before, wording in zip(texts, contexts, wordings):
                begin = len(before) + len(self.separated(text)) - len(text.text)
                scored.append(ReadText(text.name, before + wording, begin, text.carried))
            return result, scored, sizes
        join = "" if first.join in (None, "tokens") else first.join
        size = first.texts_joined or len(wordings)
        parts = [wordings[at : at + size] for at in range(0, len(wordings), size)]
        return result, [ReadText("all together", join.join(part)) for part in parts], sizes

    def keep_shown(
        self, texts: Sequence[ReadText], token_scores: Sequence[dict], result: dict
    ) -> None:
        [model] = short_names([self.args.model_id])
        own = own_perplexities(result, len(texts)) if token_scores else ()
        for text, tokens, perplexity in zip(texts, token_scores, own):
            if self.room:
                named = {"name": text.name, "perplexity": perplexity}
                reading = Reading(text.wording, tokens, result, model, text.begin, **named)
                self.report.shown.append(reading.beginning(self.room))
            self.report.has_more_texts |= len(text.wording) > self.room
            self.room = max(0, self.room - len(text.wording))
        self.report.has_more_texts |= not token_scores


def model_names(args: argparse.Namespace) -> list[str]:
    return args.label or short_names(args.models)


def short_names(models: list[str]) -> list[str]:
    """Return the last part of each model's name, or the whole name if that is ambiguous."""
    short = [os.path.basename(model.rstrip("/")) or model for model in models]
    return [name if short.count(name) == 1 else model for name, model in zip(short, models)]


def described(text: Text) -> dict:
    known = {"row": text.row, "place": text.place, "error": text.error}
    known["carried"] = text.carried if isinstance(text.carried, dict) else None
    return {"name": text.name} | {key: of for key, of in known.items() if of not in (None, {})}


def per_original_byte(result: dict, num_bytes: int, num_original: int) -> dict:
    """Return the bits per byte of the texts before detokenization."""
    if not num_original:
        return {}
    scale, bounds = num_bytes / num_original, result.get("bits_per_byte_interval")
    return {
        "bits_per_original_byte": scale * result["bits_per_byte"],
        "bits_per_original_byte_interval": bounds and [scale * bound for bound in bounds],
    }
