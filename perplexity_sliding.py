"""Perplexity of texts of any length under a causal language model, with a sliding window.

The metric as `evaluate.load` finds it: its documentation, and texts that are added bit by bit.  The
engine is the package `perplexity_sliding`, which lies beside this file in a clone, around it where
it is installed, and in the same Space on the Hub.
"""

import ast
import importlib.util
import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from inspect import Parameter, Signature, signature
from pathlib import Path

import datasets
import evaluate
import torch
from transformers import PreTrainedTokenizerBase

# --- find the package ------------------------------------------------------------------------------

# evaluate copies this file alone into its cache and imports the copy.  It demands that packages which
# are imported at the left margin are installed; those of the engine are imported further in.

_PACKAGE = "perplexity_sliding"
# Version of the package that this file belongs to.
_VERSION = "0.2.0"


@contextmanager
def _own_package() -> Iterator[None]:
    """Make `import perplexity_sliding` import the package that belongs to this file.

    Raises:
        ImportError: the package cannot be found, is of another version, or Python would import, or
            has imported, other code by its name.
    """
    own, found = _find_own_package(), _find_importable_package()
    if found is not None and found != own and _read_code(found) != _read_code(own):
        raise ImportError(
            f"The metric's package is {own} (version {_read_version(own)}), but Python imports "
            f"{found} (version {_read_version(found)}), whose code differs. Uninstall the one that "
            "is not wanted, or use each in a process of its own."
        )
    if (version := _read_version(own)) != _VERSION:
        raise ImportError(
            f"The metric {__file__} is of version {_VERSION}, but its package {own} is of version "
            f"{version}. Install the same version of both, or load the metric again."
        )
    if found is None:
        _import_from(own)
    if (imported := import_module(_PACKAGE).__version__) != _VERSION:
        raise ImportError(
            f"Python imported version {imported} of {own} before its files were updated to "
            f"{_VERSION}. Restart Python."
        )
    yield


def _find_own_package() -> Path:
    """Return the folder of the package that belongs to this file.

    It lies beside the file that evaluate loads, around it, or in the same Space.  A file
    that stands alone takes the package that Python imports.
    """
    load = _call_of_load()
    path = load.get("path", __file__)
    file = Path(path) if path.endswith(".py") else Path(path, f"{Path(path).name}.py")
    if load and not file.is_file():
        settings = load["download_config"] or datasets.DownloadConfig()
        offline = settings.local_files_only or evaluate.config.HF_EVALUATE_OFFLINE
        return _fetch(path, load["revision"], settings.token, offline)
    # In the cache of the Hub the file is a link, and the package lies beside the link.
    for folder in (file.parent.resolve(), file.resolve().parent):
        for place in (folder / _PACKAGE, folder):
            if _is_package(place):
                return place
    found = _find_importable_package()
    if found is None:
        raise ImportError(
            f"The metric {file} needs its package {_PACKAGE}, which is neither beside it nor "
            "installed. Load the metric from a clone or by its name on the Hub, or install it."
        )
    return found


def _call_of_load() -> dict:
    """Return the local variables of the call of `evaluate.load` that imports this file, if any.

    Only that call knows which file or Space it loads: equal files share one copy, whose name and
    place are those of the first.
    """
    module, frame = __name__.split("."), sys._getframe()
    while frame is not None and module[0] == "evaluate_modules":
        if frame.f_globals.get("__name__") == "evaluate.loading" and frame.f_code.co_name == "load":
            variables = frame.f_locals
            return variables if Path(variables["path"]).stem == module[-1] else {}
        frame = frame.f_back
    return {}


@cache
def _fetch(space: str, revision: str | None, token: str | bool | None, offline: bool) -> Path:
    """Return the package of a Space at a revision, from the Hub or from its cache."""
    from huggingface_hub import snapshot_download

    if re.match(r"\d*\.\d*\.\d*", revision or ""):
        revision = f"v{revision}"  # as evaluate does
    try:
        snapshot = snapshot_download(
            space,
            repo_type="space",
            revision=revision,
            token=token,
            local_files_only=offline,
            allow_patterns=[f"{_PACKAGE}/**", f"{_PACKAGE}.py"],
        )
    except Exception as error:  # versions of huggingface_hub differ in what they raise
        raise ImportError(
            f"The package of the metric {space}, revision {revision or 'main'}, can neither be "
            f"fetched from the Hub nor found in its cache: {error}"
        ) from error
    package, file = Path(snapshot, _PACKAGE), Path(snapshot, f"{_PACKAGE}.py")
    if not (file.is_file() and _is_package(package)):
        raise ImportError(
            f"The metric {space}, revision {revision or 'main'}, has no complete package in "
            f"{snapshot}. Load it once while the Hub can be reached."
        )
    if _statements(file) != _statements(Path(__file__)):
        raise ImportError(
            f"evaluate took {__file__} for the metric {space}, which differs from that of revision "
            f"{revision or 'main'}: where it does not reach a file, it takes its latest copy of any "
            f"revision. Load {file} instead."
        )
    return package.resolve()


def _statements(file: Path) -> str:
    """Return the code of a file without its comments, which evaluate ignores too."""
    return ast.dump(ast.parse(file.read_text("utf-8")))


def _find_importable_package() -> Path | None:
    """Return the folder of the package that Python imports, or has imported, by its name.

    Raises:
        ImportError: the name is that of something else.
    """
    try:
        spec = importlib.util.find_spec(_PACKAGE)
    except ValueError:  # a module that was made by hand
        spec = importlib.util.spec_from_loader(_PACKAGE, None, origin="a module without a file")
    if spec is None or spec.origin is None:  # a mere folder of this name, such as that of a clone
        return None
    # Not the file: in the cache of the Hub it is a link to a file of another name.
    folder = Path(spec.origin).parent.resolve()
    if not _is_package(folder):
        raise ImportError(
            f"The metric's package is {_PACKAGE}, but Python imports {spec.origin} by this name. "
            "Rename it, or remove it from Python's path."
        )
    return folder


def _is_package(folder: Path) -> bool:
    """Return whether a folder is this metric's package, of whichever version."""
    return all((folder / name).is_file() for name in ("__init__.py", "about.py", "api.py"))


def _read_version(package: Path) -> str:
    """Return the version that a package's files are of."""
    return re.search(r'^VERSION = "(.+)"', (package / "about.py").read_text("utf-8"), re.M)[1]


def _read_code(package: Path) -> dict[str, str]:
    """Return the code of a package by file; where it is installed, this file is among them."""
    return {
        path.relative_to(package).as_posix(): path.read_text("utf-8")
        for path in package.rglob("*.py")
        if path != package / f"{_PACKAGE}.py"
    }


def _import_from(package: Path) -> None:
    """Import a package from its folder, here and in processes that are started from here."""
    spec = importlib.util.spec_from_file_location(
        _PACKAGE, package / "__init__.py", submodule_search_locations=[str(package)]
    )
    module = sys.modules[_PACKAGE] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.path.append(import_module(f"{_PACKAGE}.about").import_folder())


with _own_package():
    from perplexity_sliding.about import CITATION, VERSION
    from perplexity_sliding.api import compute, compute_with
    from perplexity_sliding.argument_table import describe_arguments
    from perplexity_sliding.arguments import check_texts
    from perplexity_sliding.engines.sources import ModelSource, OpenModels, check_model_source
    from perplexity_sliding.errors import ArgumentError
    from perplexity_sliding.models.interface import ScoredModel
    from perplexity_sliding.plan.tokenization import Chat
    from perplexity_sliding.protocols import DEFAULT_PROTOCOL, PROTOCOLS, Protocol
    from perplexity_sliding.results.totals import Totals

__version__ = VERSION

# --- the metric ------------------------------------------------------------------------------------

_DESCRIPTION = """\
Perplexity of texts of any length under a causal language model.

A text longer than the model's context is read in overlapping windows that slide over it, and every
token is scored exactly once, given the tokens before it in its window. Perplexity is the
exponential of the mean negative log-likelihood per token, in nats. `protocol` reproduces the
numbers of other tools, whose windows differ.
"""

_KWARGS_DESCRIPTION = """
Args:
{arguments}

Returns:
    dict of plain Python numbers:
        protocol, max_length, stride, add_start_token, model: the settings as they were carried out:
            what a default stood for, and the model's name.
        perplexities (list of float): of each text.
        num_tokens_per_text (list of int): tokens scored in each.
        mean_perplexity (float): their mean, as in the stock metric.
        perplexity (float): of all texts together: exp(total_nll / num_tokens), unless the
            protocol aggregates in another way.
        perplexity_stderr (float or None): its standard error.
        perplexity_interval (list of float or None): 95 % confidence interval; None where there is
            too little to tell.
        interval_sample (str or None): what was taken as independent: texts where they are ten or
            more and none is nearly all of them; else parts of the longer ones.
        interval_scope (str or None): what the interval speaks of: "over texts" of this kind; else
            "within these texts" or "within this text", and others may differ by more.
        total_nll (float): negative log-likelihood in nats.
        num_texts, num_tokens, num_windows, num_forward_tokens (int): texts, joined ones being one;
            tokens scored; windows run, and the tokens they read, which is the cost.
        scored_share (float): tokens scored of all tokens there are, 0 to 1.
        bits_per_byte, byte_perplexity, bits_per_character, word_perplexity (float): independent
            of the tokenizer. Bytes and characters are those of the scored tokens, where the
            tokenizer says which these are; else unscored tokens count as average ones. Words are
            counted as the protocol's tool does; without any, word_perplexity is None.
        chats_as_written (list of str): with `return_token_scores` or `words`, chats as the tokenizer's
            template writes them, of which offsets count characters.
        adjusted_perplexity (float): per original word, with `word_counts`.
        num_context_tokens (int): tokens that are read as context alone, with `contexts`, `score_spans`
            or chats.
        word_scores (list of dict): with `words`, for each text the equally long lists words,
            offsets (characters of the text as it is read, context included), nll (sum over the
            word's tokens, nats), surprisal (nats, the space booked on the word that it ends; both
            are None where a part of the word is not scored), space_nll (what the space after the
            word costs of that), entropy (nats, of the prediction of its first token), num_tokens,
            and context_length (tokens that its first token sees).
        tool_stderr (float): the ± that the tool prints, with protocols that have one.
        by_context_length (list of dict): with `context_lengths`, for each, ascending: context_length,
            perplexity, interval, nll (mean), num_tokens; and, but for the longest,
            ratio_to_longest: the paired ratio, with interval, pvalue and sample. The tokens are
            those that see at least the longest less a stride, and as many less elsewhere.
        by_position (list of dict): with `positions`, for each bin with a scored token: first and
            last place, nll (mean), interval, cumulative_nll (mean of all up to `last`),
            num_tokens, num_texts.
        in_context_score (dict or None): with `positions`, nll of the 500th token less that of the
            50th (Olsson et al. 2022): nll_difference, interval, num_texts; None where no text and
            window are so long.
        longppl, longppl_interval, longppls, num_key_tokens, longppl_signature: with `key_tokens`,
            perplexity of the key tokens of all texts, its interval, that of each text (None
            without a key token), and their number; and by what rule and which evaluator they
            were found.
        token_scores (list of dict): with `return_token_scores`, for each text the equally long
            lists tokens, offsets (characters of the text), nll (nats; None where unscored) and
            context_length (tokens seen; 0 where unscored); on request, rank (1 for the likeliest)
            and entropy (nats, of the prediction); with `num_alternatives` rank and
            alternatives ([decoded token, nll] pairs, likeliest first); and
            windows, the plan: begin (first token read), first and end (tokens scored), start_token.
        totals: with `return_totals`, what this result is computed from. Totals of several calls
            add up: `sum([a["totals"], b["totals"]]).result()` is the result of all their texts,
            one after the other. That is refused where the protocol or `separator` joins texts, as
            two halves give another number than the whole. They pickle; `to_json()` writes them, and
            the metric's `totals_from_json` reads them.
        text_totals (list): with `return_totals="texts"`, the same of each text by itself.
        long_context_totals: with `return_totals`, what the keys of `context_lengths`, `positions` and
            `key_tokens` are computed from; they add up likewise. Where no text is as long as the
            longest context, they are in the place of these keys: other shards may have longer ones.
        probe (float): mean nll (nats a token) of a fixed made-up text of 256 tokens, scored as the
            texts are: equal signatures and equal probes (to 1e-4 in float32, 0.005 in float16, 0.01
            in bfloat16, 0.03 quantised) mean equal numbers; docs/safety.md says what remains.
        long_probe (list or None): where the longest pass reads more than 256 tokens, mean nll of
            a made-up text of its length: [tokens, nll of the stretch that ends there], for 512,
            1024, … tokens and the last one. Stretches that two results share are compared.
        texts_digest (str): of the texts, in their order; of chats, as the template writes them.
        comparison (dict): with a reference, what separates the model from it; intervals are of 95 %
            confidence, from texts or parts of texts, None where the text is too little:
            verdict ("worse", "better", "no clear difference", "within 1 %"), summary (a sentence),
            within_margin; perplexity_ratio (ratio, interval, pvalue, sample), correlation; of the
            reference reference_perplexity, reference_perplexity_interval, reference_perplexities,
            reference_bits_per_byte, reference_signature, reference_probe and reference_long_probe;
            own_window and reference_own_window (tokens in the window of either by itself, None
            without a limit: both read windows of `max_length`, the smaller of the two);
            bits_per_byte_change,
            its bits_per_byte_change_interval and num_compared_bytes (over the pieces of text that
            both cut, where tokens have offsets: what comparisons with other models can be set
            beside); kl and kl_reverse (divergence of the model from the reference and the other
            way, in nats), kl_percentiles, num_infinite_kl (tokens), kl_largest_part (share of one text
            in the sum), outside_mass (probability of ids that only one of them has);
            token_agreement (largest chance of the same sampled token), same_top, accuracy,
            reference_accuracy, accuracy_change, right_to_wrong, wrong_to_right; delta_p,
            delta_p_percentiles, rms_delta_p (change of the probability of the text's tokens); by_confidence, by_tokens_seen (kl and log_ratio of groups
            of tokens); worst_tokens; tool_stderrs, the ± that llama.cpp prints, with its protocol.
            `token_scores` gain reference_nll, kl, top and reference_top. Where the tokenizers
            differ, `compared` is "bytes" instead of "tokens": the change per byte, bits_per_byte of
            both over those pieces, and byte_perplexity_ratio in the place of the rest.
        piece_scores (list of dict): with `return_token_scores` and such a reference, for each text
            the equally long lists offsets (characters of a piece that both cut and score), nll and
            reference_nll (nats).
        signature, signature_short (str): what was measured, and how. Equal ones with equal texts
            mean equal numbers up to rounding; `+modified` behind the model's name says that hooks
            or code of the caller's own run in it, for which no digest can vouch.
        measurements (list of dict): where `protocol`, `max_length` or `stride` is a list: for each
            combination what a single call would give, or its protocol, max_length and stride with
            the `error` that refuses it; and, for every one after the first, `ratio_to_first`: the
            paired ratio of its perplexity to the first's, with interval, pvalue and sample. The
            other keys are the first's; `num_forward_tokens` beside them counts what was read for
            all of them.

Raises:
    TypeError, ValueError: bad arguments or texts; nothing is computed and texts that were added
        with `add` or `add_batch` are kept.

Examples:
    A model that finds all 32 tokens of its vocabulary equally likely has perplexity 32:

    >>> import evaluate, torch, transformers
    >>> from tokenizers import Tokenizer, models, pre_tokenizers
    >>> vocabulary = {word: number for number, word in enumerate("<s> a b c d e f g h".split())}
    >>> words = Tokenizer(models.WordLevel(vocabulary, unk_token="a"))
    >>> words.pre_tokenizer = pre_tokenizers.Whitespace()
    >>> tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, bos_token="<s>")
    >>> config = transformers.GPT2Config(
    ...     vocab_size=32, n_positions=8, n_embd=8, n_layer=1, n_head=1)
    >>> model = transformers.GPT2LMHeadModel(config)
    >>> _ = torch.nn.init.zeros_(model.transformer.wte.weight)
    >>> metric = evaluate.load("perplexity_sliding.py")
    >>> texts = ["a b c d e f g h a b c d e f g h", "b a d"]
    >>> results = metric.compute(predictions=texts, model=model, tokenizer=tokenizer, stride=4)
    >>> round(results["perplexity"], 4)
    32.0

    Every token is scored exactly once, whatever the stride:

    >>> results["num_tokens"], results["num_windows"]
    (19, 5)
"""

_KWARGS_DESCRIPTION = _KWARGS_DESCRIPTION.replace("{arguments}", describe_arguments())


def signature_of_a_method(function: Callable) -> Signature:
    """Return the signature that a function has as a method of a class."""
    own = Parameter("self", Parameter.POSITIONAL_OR_KEYWORD)
    of_function = signature(function)
    return of_function.replace(parameters=[own, *of_function.parameters.values()])


_ARGUMENTS = signature_of_a_method(compute)


@evaluate.utils.file_utils.add_start_docstrings(_DESCRIPTION, _KWARGS_DESCRIPTION)
class PerplexitySliding(evaluate.Metric):
    """Sliding-window perplexity as a Hugging Face `evaluate` metric.

    Attributes:
        protocols: what `protocol` takes, by name; each row says what it does.
        default_protocol: the name of the one that is used by default.
    """

    protocols: dict[str, Protocol] = PROTOCOLS
    default_protocol: str = DEFAULT_PROTOCOL

    def __init__(self, *args: object, **kwargs: object) -> None:
        with _own_package():  # evaluate imports equal files of two clones only once
            super().__init__(*args, **kwargs)
        if self.num_process > 1:
            raise ArgumentError(
                "num_process",
                "be 1",
                got=str(self.num_process),
                advice="Load the metric without it, and share the work with `distributed=True`.",
            )
        self._texts: list[str] = []  # those that were added
        self._adder: int | None = None  # the thread that added them
        self._lock = threading.RLock()  # again in the thread of a callback that uses this metric
        self._models = OpenModels()

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=CITATION,
            inputs_description=_KWARGS_DESCRIPTION,
            features=datasets.Features({"predictions": datasets.Value("string")}),
            reference_urls=["https://huggingface.co/docs/transformers/perplexity"],
        )

    def _build_data_dir(self) -> str:
        """Build as evaluate does, but a model's path as configuration name does not lead out of it."""
        name = re.sub(r"[^\w.-]+", "--", self.config_name)
        folder = os.path.join(self._data_dir_root, self.name, name)
        os.makedirs(folder, exist_ok=True)
        return folder

    def __len__(self) -> int:
        return len(self._texts)

    def add(
        self,
        *,
        prediction: str | None = None,
        reference: None = None,
        predictions: str | None = None,
    ) -> None:
        """Add one text; reject what is not a string immediately.

        Args:
            prediction: the text. `predictions` is accepted as well, as `evaluate` itself does.

        Raises:
            TypeError: it is not a string.
        """
        self.add_batch(predictions=[prediction if predictions is None else predictions])

    def add_batch(
        self, *, predictions: Iterable[str] | None = None, references: None = None
    ) -> None:
        """Add texts; reject what is not a string immediately.

        Args:
            predictions: the texts.

        Raises:
            TypeError: they are no list, or one of them is not a string.
            ValueError: the list is empty.
        """
        texts = check_texts(predictions)
        with self._lock:
            self._check_adder()
            self._texts += texts

    def compute(
        self,
        *,
        predictions: Iterable[str] | Sequence[Chat] | None = None,
        references: None = None,
        **kwargs: object,
    ) -> dict:
        """Compute the perplexity of the texts added so far and of those given.

        When it fails, texts that had been added are kept for the next call.

        Args:
            predictions: the texts; or chats, lists of messages, all of them in one call.

        Raises:
            TypeError, ValueError: an argument is unknown, or not what the documentation says; the
                model or its tokenizer cannot be loaded, or cannot be scored with.
            MemoryError: a single window does not fit.
        """
        if references is not None:
            raise ArgumentError(
                "references",
                "be left out: perplexity is of the texts alone",
                got=f"{references!r:.80}",
                advice="Pass a second model as `reference`, texts as `predictions`.",
            )
        with self._lock:
            texts = self._with_added(predictions)
            # A callback may use this metric too: it finds nothing of this call.
            added, self._texts = self._texts, []
            try:
                # evaluate would write the texts to a file, for which processes wait for each other
                return self._compute(texts, **kwargs)
            except BaseException:
                self._texts = [*added, *self._texts]
                raise

    def _with_added(self, predictions: object) -> object:
        """Put the texts that were added before those that are given; check only what is joined."""
        if not self._texts:
            return predictions
        if predictions is not None:
            self._check_adder()
        given = () if predictions is None else predictions
        return [*self._texts, *(given if isinstance(given, list | tuple) else check_texts(given))]

    def _check_adder(self) -> None:
        """Refuse to add texts to those of another thread."""
        thread = threading.get_ident()
        if self._texts and self._adder != thread:
            raise RuntimeError(
                "Another thread has added texts to this metric, with which it would mix these. "
                "Load a metric for each thread: evaluate.load gives a new one at every call."
            )
        self._adder = thread

    def _compute(self, predictions: Sequence[str] | Sequence[Chat], **kwargs: object) -> dict:
        """Compute by `compute`, whose arguments these are."""
        if kwargs.get("model_id") is None and kwargs.get("model") is None:
            kwargs["model_id"] = None if self.config_name == "default" else self.config_name
        return compute_with(self._models, {"predictions": predictions} | kwargs)

    _compute.__signature__ = _ARGUMENTS

    totals_from_json = staticmethod(Totals.from_json)

    def open_model(
        self,
        model_id: str | None = None,
        *,
        model: torch.nn.Module | None = None,
        tokenizer: PreTrainedTokenizerBase | None = None,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype | None = None,
        model_kwargs: dict | None = None,
        tokenizer_kwargs: dict | None = None,
    ) -> ScoredModel:
        """Open a model once, to ask what it takes.

        Args:
            model_id, model, tokenizer, device, dtype, model_kwargs, tokenizer_kwargs: as in
                `compute`.

        Returns:
            an object with `model` and `tokenizer`, which `compute` takes, `name`, `revision`,
            `device`, `num_embeddings` and `limit`, whose `length` is the number of tokens that the
            model takes at a time (None where it states no limit).

        Raises:
            TypeError, ValueError: as in `compute`.
        """
        named = model_id, model, tokenizer, device, dtype, model_kwargs, tokenizer_kwargs
        return check_model_source(ModelSource(*named)).open()
