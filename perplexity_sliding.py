"""Perplexity of texts of any length under a causal language model, with a sliding window.

This file is the metric that `evaluate.load` loads: its documentation, `add` and `add_batch`.  The
engine is the package `perplexity_sliding`.  In a clone it is beside this file, once installed it
contains this file, and on the Hub it is in the same Space.
"""

import ast
import importlib.util
import os
import re
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from inspect import Parameter, signature
from pathlib import Path

import datasets
import evaluate
import torch
from transformers import PreTrainedTokenizerBase

# --- find the package ------------------------------------------------------------------------------

# evaluate copies only this file into its cache and imports the copy.  It requires all packages in
# unindented imports to be installed, so the engine's imports are indented.

_PACKAGE = "perplexity_sliding"
# Version of the package that this file belongs to.
_VERSION = "0.2.0"


@contextmanager
def _own_package() -> Iterator[None]:
    """Make `import perplexity_sliding` import the package of this file.

    Raises:
        ImportError: the package is not found or has another version, or Python imports other code
            under its name.
    """
    own, found = _find_own_package(), _find_importable_package()
    if found is not None and found != own and _read_code(found) != _read_code(own):
        raise ImportError(
            f"The metric's package is {own} (version {_read_version(own)}), but Python imports "
            f"{found} (version {_read_version(found)}), whose code differs. Uninstall one of them, "
            "or use them in separate processes."
        )
    if (version := _read_version(own)) != _VERSION:
        raise ImportError(
            f"The metric {__file__} has version {_VERSION}, but its package {own} has version "
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
    """Return the folder of this file's package.

    It is beside the file that evaluate loads, contains it, or is in the same Space.  Without any of
    these, it is the package that Python imports.
    """
    load = _call_of_load()
    path = load.get("path", __file__)
    file = Path(path) if path.endswith(".py") else Path(path, f"{Path(path).name}.py")
    if load and not file.is_file():
        settings = load["download_config"] or datasets.DownloadConfig()
        offline = settings.local_files_only or evaluate.config.HF_EVALUATE_OFFLINE
        return _fetch(path, load["revision"], settings.token, offline)
    # In the Hub's cache the file is a symbolic link, and the package is beside the link.
    for folder in (file.parent.resolve(), file.resolve().parent):
        for place in (folder / _PACKAGE, folder):
            if _is_package(place):
                return place
    found = _find_importable_package()
    if found is None:
        raise ImportError(
            f"The metric {file} requires its package {_PACKAGE}, which is neither beside it nor "
            "installed. Load the metric from a clone or by its name on the Hub, or install it."
        )
    return found


def _call_of_load() -> dict:
    """Return the local variables of the `evaluate.load` call that imports this file, if any.

    Only these identify the file or Space: evaluate caches one copy of equal files, under the name
    and path of the first.
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
            f"The package of the metric {space}, revision {revision or 'main'}, could neither be "
            f"downloaded from the Hub nor found in its cache: {error}"
        ) from error
    package, file = Path(snapshot, _PACKAGE), Path(snapshot, f"{_PACKAGE}.py")
    if not (file.is_file() and _is_package(package)):
        raise ImportError(
            f"The metric {space}, revision {revision or 'main'}, has no complete package in "
            f"{snapshot}. Load it once while the Hub is reachable."
        )
    if _statements(file) != _statements(Path(__file__)):
        raise ImportError(
            f"evaluate loaded {__file__} as the metric {space}, which differs from revision "
            f"{revision or 'main'}: if it cannot reach a file, it uses its latest copy of any "
            f"revision. Load {file} instead."
        )
    return package.resolve()


def _statements(file: Path) -> str:
    """Return the code of a file without comments, which evaluate ignores too."""
    return ast.dump(ast.parse(file.read_text("utf-8")))


def _find_importable_package() -> Path | None:
    """Return the folder of the package that Python imports under this name, if any.

    Raises:
        ImportError: Python imports a different package under this name.
    """
    try:
        spec = importlib.util.find_spec(_PACKAGE)
    except ValueError:  # a module created by hand
        spec = importlib.util.spec_from_loader(_PACKAGE, None, origin="a module without a file")
    if spec is None or spec.origin is None:  # a folder without code, such as that of a clone
        return None
    # Resolve the folder only: in the Hub's cache the file links to a file of another name.
    folder = Path(spec.origin).parent.resolve()
    if not _is_package(folder):
        raise ImportError(
            f"The metric's package is {_PACKAGE}, but Python imports {spec.origin} under this name. "
            "Rename it, or remove it from Python's path."
        )
    return folder


def _is_package(folder: Path) -> bool:
    """Return whether a folder is any version of this metric's package."""
    return all((folder / name).is_file() for name in ("__init__.py", "about.py", "api.py"))


def _read_version(package: Path) -> str:
    """Return the version in a package's files."""
    return re.search(r'^VERSION = "(.+)"', (package / "about.py").read_text("utf-8"), re.M)[1]


def _read_code(package: Path) -> dict[str, str]:
    """Return the code of a package by file, without this file, which an installed package contains."""
    return {
        path.relative_to(package).as_posix(): path.read_text("utf-8")
        for path in package.rglob("*.py")
        if path != package / f"{_PACKAGE}.py"
    }


def _import_from(package: Path) -> None:
    """Import a package from its folder, in this process and its children."""
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

A window slides over texts that are longer than the model's context, and every token is scored
exactly once, given the preceding tokens of its window. Perplexity is the exponential of the mean
negative log-likelihood per token, in nats. `protocol` reproduces the numbers of other tools, whose
windows, start tokens and averages differ.
"""

_KWARGS_DESCRIPTION = """
Args:
{arguments}

Returns:
    dict of plain Python numbers:
        protocol, max_length, stride, add_start_token, model: the settings used, with defaults
            resolved, and the model's name.
        perplexities (list of float): perplexity of each text.
        num_tokens_per_text (list of int): scored tokens of each text.
        mean_perplexity (float): mean of `perplexities`, as in the stock metric.
        perplexity (float): perplexity of all texts together: exp(total_nll / num_tokens), unless
            the protocol aggregates differently.
        perplexity_stderr (float or None): standard error of `perplexity`.
        perplexity_interval (list of float or None): 95 % confidence interval of `perplexity`; None
            with too little text.
        interval_sample (str or None): sampling units of the interval: texts if there are at least
            ten and none of them dominates, else parts of the longer texts.
        interval_scope (str or None): population of the interval: "over texts" of this kind, else
            "within these texts" or "within this text"; other texts may differ by more.
        total_nll (float): negative log-likelihood in nats.
        num_texts, num_tokens, num_windows, num_forward_tokens (int): number of texts, where joined
            texts count as one; of scored tokens; of windows; and of tokens read, which is the cost.
        scored_share (float): share of all tokens that were scored, 0 to 1.
        bits_per_byte, byte_perplexity, bits_per_character, word_perplexity (float): measures that
            do not depend on the tokenizer. Bytes and characters are those of the scored tokens if
            the tokenizer returns offsets; otherwise unscored tokens count as average ones. Words
            are counted as the protocol's tool does; word_perplexity is None without words.
        chats_as_written (list of str): with `return_token_scores` or `words`, chats as formatted by
            the tokenizer's template; offsets refer to these.
        adjusted_perplexity (float): perplexity per original word, with `word_counts`.
        num_context_tokens (int): tokens read only as context, with `contexts`, `score_spans` or
            chats.
        word_scores (list of dict): with `words`, for each text the equally long lists words,
            offsets (characters of the text as read, context included), nll (sum over the word's
            tokens, nats), surprisal (nats, including the space that ends the word; nll and
            surprisal are None if part of the word is not scored), space_nll (the part due to the
            space after the word), entropy (nats, of the prediction of its first token), num_tokens, and
            context_length (tokens before its first token).
        tool_stderr (float): the ± that the tool prints, for protocols that have one.
        by_context_length (list of dict): with `context_lengths`, for each length in ascending
            order: context_length, perplexity, interval, nll (mean), num_tokens; and, except for the
            longest, ratio_to_longest: the paired ratio, with interval, pvalue and sample. All rows
            score the same tokens: those that see at least L − S tokens of the longest length L,
            with stride S. At length C they see at least C − S.
        by_position (list of dict): with `positions`, for each bin with a scored token: first and
            last position, nll (mean), interval, cumulative_nll (mean of all tokens up to `last`),
            num_tokens, num_texts.
        in_context_score (dict or None): with `positions`, nll of the 500th token minus that of the
            50th (Olsson et al. 2022): nll_difference, interval, num_texts; None if no text and
            window are that long.
        longppl, longppl_interval, longppls, num_key_tokens, longppl_signature: with `key_tokens`,
            perplexity of the key tokens of all texts, its interval, perplexity of each text (None
            without key tokens), the number of key tokens, and the rule and evaluator that found
            them.
        token_scores (list of dict): with `return_token_scores`, for each text the equally long
            lists tokens, offsets (characters of the text), nll (nats; None if unscored) and
            context_length (preceding tokens; 0 if unscored); on request, rank (1 is the most likely)
            and entropy (nats, of the prediction); with `num_alternatives`, rank and alternatives
            ([decoded token, nll] pairs, most likely first); and windows, the plan: begin (first token
            read), first and end (tokens scored), start_token.
        totals: with `return_totals`, sums from which this result is computed. Totals of several
            calls add up: `sum([a["totals"], b["totals"]]).result()` is the result of all texts in
            this order. If the protocol or `separator` joins texts, adding raises an error, because
            two halves give a different number than the whole. Totals pickle; `to_json()` writes
            them, and the metric's `totals_from_json` reads them.
        text_totals (list): with `return_totals="texts"`, the totals of each text.
        long_context_totals: with `return_totals`, sums for the keys of `context_lengths`,
            `positions` and `key_tokens`; these add up too. If no text is as long as the longest
            context, they replace these keys: other shards may have longer texts.
        probe (float): mean nll (nats per token) of a fixed random text of 256 tokens, scored like
            the texts. Equal signatures and equal probes (to 1e-4 in float32, 0.005 in float16, 0.01
            in bfloat16, 0.03 quantised or mixed) mean equal numbers of models loaded from files;
            docs/safety.md lists the exceptions.
        long_probe (list or None): if the longest pass reads more than 256 tokens, mean nll of a
            random text of its length: [tokens, nll of the stretch that ends there], for 512, 1024,
            … tokens and the last one. Compare the stretches that two results share.
        texts_digest (str): digest of the texts in their order; of chats, as the template formats
            them.
        comparison (dict): with a reference, the differences between model and reference. Intervals
            have 95 % confidence and are estimated from texts or parts of texts; None with too
            little text. Keys: verdict ("worse", "better", "no clear difference", "within 1 %"),
            summary (a sentence), within_margin; perplexity_ratio (ratio, interval, pvalue, sample),
            correlation; of the reference: reference_perplexity, reference_perplexity_interval,
            reference_perplexities, reference_bits_per_byte, reference_signature, reference_probe
            and reference_long_probe; own_window and reference_own_window (the window of each model
            alone, in tokens, None without a limit; both read windows of `max_length`, the smaller
            one), window_is_cut (whether that changes the numbers of one of them);
            bits_per_byte_change, bits_per_byte_change_interval and num_compared_bytes (over the
            pieces of text whose edges both tokenizers share, if tokens have offsets; comparable
            with other models); kl and kl_reverse (divergence of the model from the reference, and
            the reverse, in nats), kl_percentiles, num_infinite_kl (tokens), kl_largest_part
            (largest share of one text in the sum), outside_mass (probability of ids that only one
            of the two has); token_agreement (largest probability of sampling the same token),
            same_top, accuracy, reference_accuracy, accuracy_change, right_to_wrong, wrong_to_right;
            delta_p, delta_p_percentiles, rms_delta_p (change in the probability of the text's
            tokens); by_confidence, by_tokens_seen (kl and log_ratio of groups of tokens);
            worst_tokens; tool_stderrs (the ± that llama.cpp prints, with its protocol).
            `token_scores` gain reference_nll, kl, top and reference_top. If the tokenizers differ,
            `compared` is "bytes" instead of "tokens", and the change per byte, bits_per_byte of
            both over those pieces and byte_perplexity_ratio replace the other keys.
        piece_scores (list of dict): with `return_token_scores` and such a reference, for each text
            the equally long lists offsets (characters of a piece that both tokenizers share and
            both models score), nll and reference_nll (nats).
        signature, signature_short (str): identify the measurement; see `probe`. `+modified` after the
            model's name means that hooks or other code of the caller run in it, which no digest covers.
        measurements (list of dict): if `protocol`, `max_length` or `stride` is a list, for each
            combination the result of a single call, or its protocol, max_length and stride with
            the `error`; and, for all but the first, `ratio_to_first`: the paired ratio of its
            perplexity to the first, with interval, pvalue and sample. The other keys are those of
            the first, except for `num_forward_tokens`, which counts the tokens of all of them.

Raises:
    TypeError, ValueError: invalid arguments or texts. Nothing is computed, and texts added with
        `add` or `add_batch` are kept.

Examples:
    A model that assigns the same probability to all 32 tokens of its vocabulary has perplexity 32:

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


# Of `compute` as a method.
_SELF = Parameter("self", Parameter.POSITIONAL_OR_KEYWORD)
_ARGUMENTS = signature(compute).replace(parameters=[_SELF, *signature(compute).parameters.values()])


@evaluate.utils.file_utils.add_start_docstrings(_DESCRIPTION, _KWARGS_DESCRIPTION)
class PerplexitySliding(evaluate.Metric):
    """Sliding-window perplexity as a Hugging Face `evaluate` metric.

    Attributes:
        protocols: the allowed values of `protocol`, with their rows.
        default_protocol: the default value of `protocol`.
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
                advice="Load the metric without it, and pass `distributed=True` to `compute`.",
            )
        self._texts: list[str] = []  # added texts
        self._adder: int | None = None  # the thread that added them
        self._lock = threading.RLock()  # reentrant for callbacks that use this metric
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
        """Build the data folder; unlike evaluate's, it cannot be outside the cache.

        The configuration name may be a model's path.
        """
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
        """Add one text, and check its type immediately.

        Args:
            prediction: the text. `predictions` is accepted as well, as in `evaluate` itself.

        Raises:
            TypeError: the text is not a string.
        """
        self.add_batch(predictions=[prediction if predictions is None else predictions])

    def add_batch(
        self, *, predictions: Iterable[str] | None = None, references: None = None
    ) -> None:
        """Add texts, and check their types immediately.

        Args:
            predictions: the texts.

        Raises:
            TypeError: `predictions` is not a list of strings.
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
        """Compute the perplexity of the added texts followed by `predictions`.

        If it fails, added texts are kept for the next call.

        Args:
            predictions: the texts; or chats, lists of messages, all in one call.

        Raises:
            TypeError, ValueError: an argument is unknown or invalid, or the model or its tokenizer
                cannot be loaded or used.
            MemoryError: a single window does not fit in memory.
        """
        if references is not None:
            raise ArgumentError(
                "references",
                "be left out: perplexity has no reference texts",
                got=f"{references!r:.80}",
                advice="Pass a second model as `reference`, texts as `predictions`.",
            )
        with self._lock:
            texts = self._with_added(predictions)
            # A callback that uses this metric must not see the texts of this call.
            added, self._texts = self._texts, []
            try:
                # evaluate's own `compute` writes the texts to a file and synchronises processes
                return self._compute(texts, **kwargs)
            except BaseException:
                self._texts = [*added, *self._texts]
                raise

    def _with_added(self, predictions: object) -> object:
        """Return the added texts followed by `predictions`, which are checked only if both exist."""
        if not self._texts:
            return predictions
        if predictions is not None:
            self._check_adder()
        given = () if predictions is None else predictions
        return [*self._texts, *(given if isinstance(given, list | tuple) else check_texts(given))]

    def _check_adder(self) -> None:
        """Refuse to mix texts of several threads."""
        thread = threading.get_ident()
        if self._texts and self._adder != thread:
            raise RuntimeError(
                "Another thread has added texts to this metric. Load one metric per thread: "
                "evaluate.load returns a new one at every call."
            )
        self._adder = thread

    def _compute(self, predictions: Sequence[str] | Sequence[Chat], **kwargs: object) -> dict:
        """Call the package's `compute`, which has the same arguments."""
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
        """Open a model once, to inspect it or to reuse it in several calls.

        Args:
            model_id, model, tokenizer, device, dtype, model_kwargs, tokenizer_kwargs: as in
                `compute`.

        Returns:
            an object with `model` and `tokenizer`, which `compute` accepts, and with `name`,
            `revision`, `device`, `num_embeddings` and `limit`, whose `length` is the model's limit
            in tokens (None without a stated limit).

        Raises:
            TypeError, ValueError: as in `compute`.
        """
        named = model_id, model, tokenizer, device, dtype, model_kwargs, tokenizer_kwargs
        return check_model_source(ModelSource(*named)).open()
