"""Perplexity of texts of any length under a causal language model, with a sliding window.

The face of the metric: its documentation, its arguments and the order of work.  Windows are planned
in windows.py, scored in scoring.py and summed up in results.py.
"""

import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import SimpleNamespace

import datasets
import evaluate
import torch

from .arguments import (
    check_model_source,
    check_names,
    check_protocol,
    check_running,
    check_texts,
    check_word_counts,
)
from .checkpoint import open_checkpoint
from .distributed import Processes
from .heads import ways
from .identity import (
    VERSION,
    TextsDigest,
    check_identifiable,
    describe_measurement,
    model_name,
    model_revision,
)
from .loading import (
    check_decoder,
    context_limit,
    evaluating,
    files_state,
    find_commit,
    input_device,
    load_model,
    load_tokenizer,
    num_embeddings,
    resolve_device,
    resolve_dtype,
    snapshot,
    unwrapped,
)
from .measuring import (
    Work,
    check_ids,
    check_scorable,
    make_plan,
    read,
    score_windows,
    text_scores,
    token_scores,
)
from .probing import probe
from .results import Settings, Totals
from .scoring import Scorer

# Used by heads.py alone; evaluate copies no file that isn't imported here.
from .shortcuts import ScoredRows as ScoredRows
from .tokenization import check_tokenizer

# Used by results.py alone.
from .uncertainty import Estimate as Estimate
from .windows import PROTOCOLS

__version__ = VERSION

_DESCRIPTION = """\
Perplexity of texts of any length under a causal language model.

A text longer than the model's context is read in overlapping windows that slide over it, and every
token is scored exactly once, given the tokens before it in its window. Perplexity is the
exponential of the mean negative log-likelihood per token, in nats. `protocol` reproduces the
numbers of other tools, whose windows differ.
"""

_KWARGS_DESCRIPTION = """
Args:
    predictions (list of str): the texts.
    model_id (str): a causal language model on the Hub, or a folder. Also taken from the
        configuration name: `evaluate.load("user/perplexity_sliding", "openai-community/gpt2")`.
    batch_size (int): windows of `max_length` tokens in one forward pass; shorter windows share
        their room. Defaults to 16.
    add_start_token (bool or str): whether the first token is scored too, given the tokenizer's
        start token. "once" puts it before the text, "every" at the head of every window, where it
        takes one of the places; True means "every" where the tokenizer itself prepends one when
        it encodes, and "once" elsewhere. Defaults to True.
    device (str): "cpu", "gpu", "cuda", "cuda:1", "mps"; an accelerator if there is one by default.
    max_length (int): tokens in a window, the model's limit by default.
    stride (int): tokens from one window to the next, 1 to `max_length`; half the window by default.
        Smaller strides give each token more context and cost more.
    model (torch.nn.Module): a live model instead of `model_id`; left as it was found.
    tokenizer: the tokenizer of `model`, or one to use instead of that of `model_id`.
    dtype (str or torch.dtype): what to load the weights in: "float32" (the default), "bfloat16",
        "float16", or "auto" for that of the checkpoint.
    model_kwargs (dict): more arguments for the model's `from_pretrained`: revision, device_map,
        quantization_config, token, attn_implementation, trust_remote_code, …
    tokenizer_kwargs (dict): the same for the tokenizer, which by default shares revision, token
        and the like with the model.
    return_token_scores (bool): also return every token's score. Defaults to False.
    protocol (str): whose windows to use: "sliding" (the default), "transformers-docs",
        "transformers-docs-weighted", "stock", "lm-eval", "paloma", "llama.cpp", "gptq",
        "exllamav2", "megatron", "mlx-lm".
    separator (str): joins the texts into one before anything else. By default each is scored on
        its own; protocols that join do so by themselves.
    word_counts (list of int): original words (or tokens) of each text, to normalise by.
    logits_memory (int): bytes that logits may take at a time. Defaults to 512 MiB.
    num_alternatives (int): also return each token's rank and this many of the likeliest tokens in
        its place, in `token_scores`. Defaults to 0.
    callback (callable): called after every batch with an object that has `done` and `total`
        (tokens through the model) and `perplexity` (so far). An exception it raises ends the
        compute; texts that were added are kept.
    checkpoint (str): a SQLite file that keeps the scores of finished windows. The same compute on
        the same file goes on where a killed one stopped, and ends with the same result.
    distributed (bool): share the windows out between the processes that `torchrun` started; each
        must make this same call, and gets the same result. Needs the package accelerate.
    return_totals (bool): also return what adds up over shards of a corpus. Defaults to False.

Returns:
    dict of plain Python numbers:
        perplexities (list of float): of each text.
        tokens_per_text (list of int): tokens scored in each.
        mean_perplexity (float): their mean, as in the stock metric.
        perplexity (float): of all texts together: exp(total_nll / num_tokens), unless the
            protocol aggregates in another way.
        perplexity_stderr (float or None): its standard error.
        perplexity_interval (list of float or None): 95 % confidence interval; None where there is
            too little to tell.
        interval_sample (str or None): what was taken as independent: texts while they are about
            ten or more, weighed by their length; else parts of the longer ones.
        total_nll (float): negative log-likelihood in nats.
        num_tokens, num_windows, num_forward_tokens (int): tokens scored, windows run, and the
            tokens they read, which is the cost.
        scored_share (float): tokens scored of all tokens there are, 0 to 1.
        bits_per_byte, byte_perplexity, bits_per_character, word_perplexity (float): independent
            of the tokenizer; word_perplexity is None where there are no words.
        adjusted_perplexity (float): per original word, with `word_counts`.
        tool_stderr (float): the ± that the tool prints, with protocols that have one.
        token_scores (list of dict): with `return_token_scores`, for each text the equally long
            lists tokens, offsets (characters of the text), nll (nats; None where unscored) and
            context_length (tokens seen; 0 where unscored); with `num_alternatives` also rank (1
            for the likeliest) and alternatives ([decoded token, nll] pairs, likeliest first); and
            windows, the plan: begin (first token read), first and end (tokens scored), start_token.
        totals: with `return_totals`, what this result is computed from. Totals of several computes
            add up: `(a["totals"] + b["totals"]).result()` is the result of all their texts.
        texts_digest (str): of the texts, in their order.
        signature, signature_short (str): what was measured, and how. Equal ones with equal texts
            mean equal numbers up to rounding; `+modified` behind the model's name says that hooks
            or code of the caller's own run in it, for which no digest can vouch.

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

_CITATION = """\
@article{jelinek1977perplexity,
  title = {Perplexity—a measure of the difficulty of speech recognition tasks},
  author = {Jelinek, Fred and Mercer, Robert L. and Bahl, Lalit R. and Baker, James K.},
  journal = {The Journal of the Acoustical Society of America},
  volume = {62},
  year = {1977}
}
"""


# Held while a thread looks whether another one is inside a metric.
_ENTRANCE = threading.Lock()


@dataclass(frozen=True)
class LoadedModel:
    """A model in use, and what was found out about it."""

    model: torch.nn.Module
    tokenizer: object
    name: str
    revision: str
    description: str


@evaluate.utils.file_utils.add_start_docstrings(_DESCRIPTION, _KWARGS_DESCRIPTION)
class PerplexitySliding(evaluate.Metric):
    """Sliding-window perplexity as a Hugging Face `evaluate` metric.

    Attributes:
        protocols: the names that `protocol` takes.
    """

    protocols = tuple(PROTOCOLS)

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._added: list[str] = []  # texts that evaluate holds in its file
        self._adder: int | None = None  # the thread that added them
        self._kept: list[str] = []  # texts of a call that failed
        self._received: list[str] = []
        self._thread: int | None = None  # the thread that is inside a call
        self._loaded: tuple[object, LoadedModel] | None = None

    def _info(self):
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_KWARGS_DESCRIPTION,
            features=datasets.Features({"predictions": datasets.Value("string")}),
            reference_urls=["https://huggingface.co/docs/transformers/perplexity"],
        )

    def _build_data_dir(self):
        """evaluate's, but for a model's path as configuration name, which would lead out of it."""
        name = re.sub(r"[^\w.-]+", "--", self.config_name)
        folder = os.path.join(self._data_dir_root, self.name, name)
        os.makedirs(folder, exist_ok=True)
        return folder

    def __len__(self):
        return super().__len__() + len(self._kept)

    def add(self, *, prediction=None, reference=None, **kwargs):
        """Add one text, refusing at once what is none.

        Args:
            prediction: the text. `predictions` is accepted as well, as `evaluate` itself does.
        """
        text = kwargs.pop("predictions", prediction)
        check_texts([text])
        with self._one_thread(adding=True):
            self._restore()
            super().add(prediction=text, **kwargs)
            self._added.append(text)

    def add_batch(self, *, predictions=None, references=None, **kwargs):
        """Add texts; reject what is no string immediately.

        Args:
            predictions: the texts.
        """
        texts = check_texts(predictions)
        with self._one_thread(adding=True):
            self._restore()
            super().add_batch(predictions=texts, **kwargs)
            self._added += texts

    def compute(self, *, predictions=None, references=None, **kwargs):
        """Compute the perplexity of the texts added so far and of those given.

        When it fails, texts that had been added are kept for the next call.

        Args:
            predictions: the texts.
        """
        check_names(self._compute, kwargs)
        if predictions is not None:
            predictions = check_texts(predictions)
        with self._one_thread(adding=predictions is not None):
            self._restore()
            if predictions is None and not len(self):
                raise ValueError(
                    "`predictions` must be given: a list of at least one text, or add texts with "
                    "`add_batch` first."
                )
            num_added = len(self._added)
            # evaluate leaves the names of the last call's files, which may be another's by now.
            self.file_paths = self.filelocks = None
            try:
                return super().compute(predictions=predictions, **kwargs)
            except BaseException:
                given = len(predictions or ())
                added = self._received[: len(self._received) - given] or self._added[:num_added]
                self._discard_cache()
                self._kept = added
                raise
            finally:
                self._received, self._added, self._adder = [], [], None

    def _restore(self) -> None:
        """Put back the texts of a call that failed."""
        if not self._kept:
            return
        try:
            super().add_batch(predictions=self._kept)
        except BaseException:
            self._discard_cache()
            raise
        self._added, self._kept = self._kept, []

    def _discard_cache(self) -> None:
        """Remove the Arrow file that evaluate leaves behind when a call fails, and free its lock.

        The lock's file stays, as another process may wait for it, and so do the Arrow files of
        other processes, of which evaluate holds the locks with `num_process`.
        """
        writer, self.data, self.writer, self.buf_writer = self.writer, None, None, None
        if writer is not None:
            with suppress(Exception):  # a file that cannot be written cannot be closed either
                writer.close()
        files = [(self.filelock, self.cache_file_name)]
        files += zip(self.filelocks or (), self.file_paths or ())
        own = self.cache_file_name or (self.file_paths or [None])[0]
        for lock, path in files:
            if path is not None and path == own:
                with suppress(FileNotFoundError):
                    os.remove(path)
            if lock is not None:
                lock.release()
        self.filelocks = self.file_paths = self.filelock = self.cache_file_name = None

    @contextmanager
    def _one_thread(self, adding: bool) -> Iterator[None]:
        """Refuse a second thread, whose texts evaluate would mix with those of the first.

        Args:
            adding: texts come from this thread; those that were added must have, too.
        """
        thread = threading.get_ident()
        with _ENTRANCE:
            alive = {one.ident for one in threading.enumerate()}
            other_inside = self._thread not in (None, thread)
            other_adds = adding and self._added and self._adder != thread
            if other_inside or (other_adds and self._adder in alive):
                raise RuntimeError(
                    "This metric is in use by another thread, with whose texts it would mix these. "
                    "Load a metric for each thread: evaluate.load gives a new one at every call."
                )
            outer, self._thread = self._thread, thread
            if adding:
                self._adder = thread
        try:
            yield
        finally:
            self._thread = outer

    def _compute(
        self,
        predictions,
        model_id=None,
        batch_size=16,
        add_start_token=True,
        device=None,
        max_length=None,
        stride=None,
        model=None,
        tokenizer=None,
        dtype=None,
        model_kwargs=None,
        tokenizer_kwargs=None,
        return_token_scores=False,
        protocol="sliding",
        separator=None,
        word_counts=None,
        logits_memory=2**29,
        num_alternatives=0,
        callback=None,
        checkpoint=None,
        distributed=False,
        return_totals=False,
    ):
        self._received = list(predictions)
        word_counts = check_word_counts(word_counts, len(predictions))
        rule = check_protocol(protocol, max_length, stride, add_start_token, separator)
        check_running(batch_size, logits_memory, num_alternatives, callback, checkpoint)
        if model_id is None and model is None and self.config_name != "default":
            model_id = self.config_name
        check_model_source(
            model_id, model, tokenizer, device, dtype, model_kwargs, tokenizer_kwargs
        )
        processes = Processes(distributed)
        if model is None:
            loaded = self._load(model_id, tokenizer, device, dtype, model_kwargs, tokenizer_kwargs)
        else:
            loaded = adopt(model, tokenizer)
        with_tokens = return_token_scores or num_alternatives > 0
        with evaluating(loaded.model):
            texts, streams = read(loaded.tokenizer, predictions, rule, separator, with_tokens)
            limit = context_limit(loaded.model, loaded.tokenizer)
            plan = make_plan(
                loaded.tokenizer, limit, rule, streams, max_length, stride, add_start_token
            )
            work = Work(streams, plan)
            check_scorable(work, plan)
            found = probe(loaded.model, loaded.revision, loaded.description)
            scorer = Scorer(
                input_device(loaded.model),
                ways(loaded.model)[found.way](),
                found.vocabulary,
                batch_size * plan.max_length,
                logits_memory,
                num_alternatives,
            )
            known = num_embeddings(loaded.model) or found.vocabulary
            check_ids(work, min(known, found.vocabulary))
            measurement = SimpleNamespace(plan=plan, separator=separator)
            signatures = describe_measurement(loaded, measurement, word_counts is not None)
            if checkpoint is not None:
                check_identifiable(loaded.model)
            with open_checkpoint(checkpoint, signatures["signature"]) as store:
                scores = score_windows(scorer, work, store, processes, callback)
        totals = Totals.of(
            text_scores(texts, work, scores, word_counts),
            Settings(rule.aggregate, rule.error, plan.max_length, word_counts is not None),
            num_forward_tokens=sum(work.costs),
            identity=signatures,
            texts_digest=TextsDigest.of(predictions),
        )
        result = totals.result()
        if return_totals:
            result["totals"] = totals
        if with_tokens:
            result["token_scores"] = [
                token_scores(loaded.tokenizer, *of_text)
                for of_text in zip(work.streams, work.per_text, scores)
            ]
        return result

    def _load(self, model_id, tokenizer, device, dtype, model_kwargs, tokenizer_kwargs):
        """Load a model, or take the one of the last compute if it is the very same."""
        model_kwargs, tokenizer_kwargs = dict(model_kwargs or {}), dict(tokenizer_kwargs or {})
        if tokenizer is not None:
            check_tokenizer(tokenizer)
        state = files_state(model_id, model_kwargs)
        settings = snapshot([device, dtype, model_kwargs, tokenizer_kwargs])
        key = (model_id, tokenizer, settings, state)
        if self._loaded is not None and self._loaded[0] == key:
            return self._loaded[1]
        placed = "device_map" in model_kwargs or "quantization_config" in model_kwargs
        typed = bool({"dtype", "torch_dtype", "quantization_config"} & set(model_kwargs))
        target = None if placed and device is None else resolve_device(device)
        weights = None if typed and dtype is None else resolve_dtype(dtype)
        self._loaded = None  # its memory is needed for the next
        if tokenizer is None:
            tokenizer = load_tokenizer(model_id, tokenizer_kwargs, model_kwargs)
        model = load_model(model_id, target, weights, model_kwargs)
        loaded = LoadedModel(
            model,
            tokenizer,
            model_name(model_id, model_kwargs),
            model_revision(model, find_commit(model_id, model_kwargs)),
            f"`model_id`={model_id!r}",
        )
        self._loaded = key, loaded
        return loaded


def adopt(model, tokenizer) -> LoadedModel:
    """Take a live model and its tokenizer as they are."""
    if not isinstance(model, torch.nn.Module):
        raise TypeError(
            f"`model` must be a loaded torch model, got {type(model).__name__}. Pass a name or a "
            "folder as `model_id`."
        )
    model = unwrapped(model)
    check_tokenizer(tokenizer)
    config = getattr(model, "config", None)
    check_decoder(config, "`model`")
    name = model_name(getattr(config, "_name_or_path", "") or type(model).__name__, {})
    return LoadedModel(model, tokenizer, name, model_revision(model, None), "`model`")
