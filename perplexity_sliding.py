"""Perplexity of texts of any length under a causal language model, with a sliding window.

The metric as evaluate loads it: documentation, and texts that are added bit by bit.  What a call does
is in call.py, which needs no evaluate.
"""

import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from inspect import Parameter, Signature, signature

import datasets
import evaluate
import torch
from transformers import PreTrainedTokenizerBase

from perplexity_sliding.about import CITATION, VERSION
from perplexity_sliding.api import compute, compute_with
from perplexity_sliding.arguments import check_texts
from perplexity_sliding.digests import TextsDigest as TextsDigest
from perplexity_sliding.engines.gguf import GGUFModel as GGUFModel
from perplexity_sliding.engines.served import ServedModel as ServedModel
from perplexity_sliding.engines.server import Server as Server
from perplexity_sliding.engines.server_apis import Prompt as Prompt
from perplexity_sliding.engines.server_opening import ServedModelInfo as ServedModelInfo
from perplexity_sliding.engines.server_probe import Identity as Identity
from perplexity_sliding.engines.sources import ModelSource, OpenModels, check_model_source
from perplexity_sliding.engines.vllm import adopt_vllm as adopt_vllm
from perplexity_sliding.errors import ArgumentError
from perplexity_sliding.models.digest import modifications as modifications
from perplexity_sliding.models.language_model import LanguageModel
from perplexity_sliding.models.loading import check_exists as check_exists
from perplexity_sliding.models.logits import Head as Head
from perplexity_sliding.models.module import input_device as input_device
from perplexity_sliding.models.probes import KeptState as KeptState
from perplexity_sliding.models.signature import describe_measurement as describe_measurement
from perplexity_sliding.models.states import StateReader as StateReader
from perplexity_sliding.plan.chats import separate_chats
from perplexity_sliding.plan.joins import runs_together as runs_together
from perplexity_sliding.plan.measurement import Measurement as Measurement
from perplexity_sliding.plan.parts import check_parts as check_parts
from perplexity_sliding.plan.settings import Corpus as Corpus
from perplexity_sliding.plan.tokenization import Chat
from perplexity_sliding.plan.windows import ContextLimit as ContextLimit
from perplexity_sliding.plan.windows import Window as Window
from perplexity_sliding.protocols import DEFAULT_PROTOCOL, PROTOCOLS, Protocol
from perplexity_sliding.request import Request as Request
from perplexity_sliding.results.comparison import PairedScores as PairedScores
from perplexity_sliding.results.contexts import LongContextTotals as LongContextTotals
from perplexity_sliding.results.identity import judge_identity as judge_identity
from perplexity_sliding.results.key_tokens import KeyTokenTotals as KeyTokenTotals
from perplexity_sliding.results.pairs import score_pair as score_pair
from perplexity_sliding.results.pooled import PooledTotals as PooledTotals
from perplexity_sliding.results.report import Report as Report
from perplexity_sliding.results.totals import Totals
from perplexity_sliding.results.uncertainty import estimate_ratio_of_text
from perplexity_sliding.results.words import Vocabulary as Vocabulary
from perplexity_sliding.scoring.carried import score_carried as score_carried
from perplexity_sliding.scoring.checkpoint import Checkpoint as Checkpoint
from perplexity_sliding.scoring.distributed import Processes as Processes
from perplexity_sliding.scoring.healing import plan_healing as plan_healing
from perplexity_sliding.scoring.hidden_states import store_reference as store_reference
from perplexity_sliding.scoring.measures import TOKEN_MEASURES
from perplexity_sliding.scoring.passes import Scorer as Scorer
from perplexity_sliding.scoring.runner import Session as Session
from perplexity_sliding.scoring.served import ServedScorer as ServedScorer

# Names imported as themselves are used by other modules of the engine alone: evaluate copies no
# file that isn't imported here.

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
    predictions (list of str): the texts; or chats, lists of messages (dicts with role and content):
        the tokenizer's chat template writes them out, and the assistant's messages are scored.
    model_id (str): a causal language model on the Hub, a folder, a GGUF file, or the address of a
        server such as vLLM's, "http://host:8000/v1". Also taken from the configuration name:
        `evaluate.load("user/perplexity_sliding", "openai-community/gpt2")`.
    batch_size (int): windows of `max_length` tokens in one forward pass; shorter windows share
        their room. On a CPU, where more would be slower, a pass takes 1,024 tokens at most, or one
        window. Defaults to 16.
    add_start_token (bool or str): whether the first token is scored too, given the tokenizer's
        start token. "once" puts it before the text, "every" at the head of every window, where it
        takes one of the places; True means "every" where the tokenizer itself prepends one when
        it encodes, and "once" elsewhere. Defaults to True.
    device (str): "cpu", "gpu", "cuda", "cuda:1", "mps"; an accelerator if there is one by default.
    max_length (int or list of int): tokens in a window, the model's limit by default.
    stride (int or list of int): tokens from one window to the next, 1 to `max_length`; half the
        window by default. Smaller strides give each token more context and cost more.
    model (torch.nn.Module or vllm.LLM): a live model instead of `model_id`; left as it was found.
    tokenizer: the tokenizer of `model`, or one to use instead of that of `model_id`.
    dtype (str or torch.dtype): what to load the weights in: "float32" (the default), "bfloat16",
        "float16", or "auto" for that of the checkpoint.
    model_kwargs (dict): more arguments for the model's `from_pretrained`: revision, device_map,
        quantization_config, token, attn_implementation, trust_remote_code, …
    tokenizer_kwargs (dict): the same for the tokenizer, which by default shares revision, token
        and the like with the model.
    return_token_scores (bool or list of str): also return every token's score; a list adds columns to
        it: {token_columns}. Defaults to False.
    protocol (str or list of str): whose windows to use: {protocols}; or "all" of them. Where
        `protocol`, `max_length` or `stride` is a list, every combination is measured, and what
        they share is read once: see `measurements`.
    separator (str): joins the texts into one before anything else. By default each is scored on
        its own; protocols that join do so by themselves.
    word_counts (list of int): original words (or tokens) of each text, to normalise by. By
        default what stands between white space, or what the protocol's tool counts.
    logits_memory (int): bytes that logits may take at a time. Defaults to 512 MiB.
    num_alternatives (int): also return each token's rank and this many of the likeliest tokens in
        its place, in `token_scores`. Defaults to 0.
    callback (callable): called after every batch with an object that has `done` and `total`
        (tokens through the model; with states of a reference, through that one before it) and
        `perplexity` (so far; NaN while the reference runs alone). An exception it raises ends the
        run; texts that were added are kept. A method `status` of it is told what goes on before.
    checkpoint (str): a SQLite file that keeps the scores of finished passes. The same call with
        the same file resumes where a killed one stopped, with the same result; another
        stride, window or protocol over the same texts takes what is there already.
    distributed (bool): share the windows out between the processes that `torchrun` started; each
        must make this same call, and gets the same result. Needs the package accelerate.
    return_totals (bool or str): also return what adds up over shards of a corpus; "texts" does so
        for each text by itself too. Defaults to False.
    detokenizer (str): the name of what turned the texts into prose beforehand, for the signature.
    reference (str, torch.nn.Module or dict): a second model to compare the first with, by name or
        live; "without adapter" takes the first with its adapters switched off. Both read the same
        windows, and their logits meet block by block: see `comparison`. A dict says more: model_id
        or model; tokenizer, if it is not its own (by name) or the model's (live); dtype, that of the
        model by default; model_kwargs for `from_pretrained`; and states, a file for the reference's
        last hidden states, where two models do not fit in memory together: the reference runs first
        and alone, then only its head stays. The result is the same. A killed run resumes, and the
        next candidate finds the states there.
    margin (float): how much worse the model may be: 0.01 for 1 % of perplexity. The `verdict` then
        says if it stays within, and `within_margin` whether that is sure.
    context_lengths (list of int or str): also compare windows of these lengths on the same tokens,
        read in the passes of the longest, which `max_length` may name and the other numbers are
        of; "doubling" takes the window and its halves. `stride` is half of the shortest by default.
    positions (list of int or str): also give the loss by place in the text: edges of bins, 0 being
        the first token, or "doubling".
    carry (bool): read every text once, in segments of `stride` tokens, and carry the model's state
        on: with a recurrent model, the score with all context; with attention the keys of the last
        `max_length - stride` tokens, as Transformer-XL is evaluated, which gives other numbers
        than a sliding window. Refused for learned positions. Defaults to False.
    key_tokens (str or dict): "longppl" also gives the perplexity of tokens that need a long
        context (Fang et al. 2025); a dict changes some of its settings: short_context (4096
        tokens), stride (1024), gain (2 nats), largest_nll (2 nats), and evaluator, the model that
        finds them: a name, a folder, or a pair (model, tokenizer); the measured one by default.
    contexts (str or list of str): what is read before each text and not scored: one for all, or
        one for each. Every number is then of the texts alone.
    score_spans (list of lists of pairs): (first, one past the last) characters of each text that
        are scored; the rest is read.
    boundary (str): how to score a token that reaches across the edge of a scored part: "joint" (the
        default) as a whole, with a warning; "healed" given those of its characters that stand
        before the edge; "separate" tokenizes context and text apart, so that no token does.
    context_separator (str): put between each context and its text, and scored with the text; " " where
        neither brings the space between them along. Without it, texts that run together with
        their contexts are warned of; "" keeps them so.
    words (bool or list): also return the scores of words: True for those between white space, or a
        list with the words of each text, or with the (first, one past the last) characters of each.
    word_correction (str or None): how to account for the space between words: "pimentel" (the
        default; Pimentel and Meister, 2024), "oh" (Oh and Schuler, 2024), or None for plain sums.

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
            context_length (tokens seen; 0 where unscored); where asked for, rank (1 for the likeliest)
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
            own_window and reference_own_window (tokens in the window of either by itself, None without a limit:
            both read windows of `max_length`, the smaller of the two); bits_per_byte_change,
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

_KWARGS_DESCRIPTION = _KWARGS_DESCRIPTION.replace(
    "{protocols}",
    ", ".join(f'"{name}"' + " (the default)" * (name == DEFAULT_PROTOCOL) for name in PROTOCOLS),
).replace("{token_columns}", ", ".join(f'"{name}"' for name in TOKEN_MEASURES))


def signature_of_a_method(function: Callable) -> Signature:
    """Return the signature that a function has as a method of a class."""
    own = Parameter("self", Parameter.POSITIONAL_OR_KEYWORD)
    of_function = signature(function)
    return of_function.replace(parameters=[own, *of_function.parameters.values()])


_ARGUMENTS = signature_of_a_method(compute)
# Held while a thread looks whether another one is inside a metric.
_ENTRANCE = threading.Lock()


@evaluate.utils.file_utils.add_start_docstrings(_DESCRIPTION, _KWARGS_DESCRIPTION)
class PerplexitySliding(evaluate.Metric):
    """Sliding-window perplexity as a Hugging Face `evaluate` metric.

    Attributes:
        protocols: what `protocol` takes, by name; each row says what it does.
        default_protocol: the name of the one that is used unless another is asked for.
    """

    protocols: dict[str, Protocol] = PROTOCOLS
    default_protocol: str = DEFAULT_PROTOCOL

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self._texts: list[str] = []  # those that were added
        self._adder: int | None = None  # the thread that added them
        self._thread: int | None = None  # the thread that is inside a call
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
        texts = check_texts([prediction if predictions is None else predictions])
        with self._in_one_thread(adding=True):
            self._texts += texts

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
        with self._in_one_thread(adding=True):
            self._texts += texts

    def compute(
        self,
        *,
        predictions: Iterable[str] | Sequence[Chat] | None = None,
        references: None = None,
        **kwargs: object,
    ) -> dict | None:
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
        with self._in_one_thread(adding=predictions is not None):
            texts = self._with_added(predictions)
            # A callback may use this metric too: it finds nothing of this call.
            added, self._texts = self._texts, []
            try:
                return self._of_all_processes(texts, kwargs)
            except BaseException:
                self._texts = [*added, *self._texts]
                raise

    def _with_added(self, predictions: object) -> object:
        """Put the texts that were added before those that are given; what is no list is not looked at."""
        if not self._texts:
            return predictions
        given = () if predictions is None else predictions
        return [*self._texts, *(given if isinstance(given, list | tuple) else check_texts(given))]

    def _of_all_processes(self, texts: object, kwargs: dict) -> dict | None:
        """Compute; with `num_process` in the first process, of the texts of all of them.

        Texts stay in memory otherwise: evaluate's files would make processes wait for each other.
        """
        if self.num_process == 1:
            return self._compute(texts, **kwargs)
        texts, chats = separate_chats(texts)
        if chats is not None:
            raise ArgumentError(
                "num_process", "be 1 with chats", advice="Load the metric without it."
            )
        # evaluate leaves the names of the last call's files, which may be another's by now.
        self.file_paths = self.filelocks = None
        try:
            super().add_batch(predictions=check_texts(texts))
            return super().compute(**kwargs)
        except BaseException:
            self._discard_cache()
            raise

    def _discard_cache(self) -> None:
        """Remove the Arrow file that evaluate leaves behind when a call fails, and free its lock.

        The lock's file stays, as another process may wait for it, and so do the Arrow files of
        other processes, of which evaluate holds the locks.
        """
        writer, self.data, self.writer = self.writer, None, None
        if writer is not None:
            with suppress(Exception):  # a file that cannot be written cannot be closed either
                writer.close()
        files = [(self.filelock, self.cache_file_name)]
        files += zip(self.filelocks or (), self.file_paths or ())
        own_file = self.cache_file_name or (self.file_paths or [None])[0]
        for lock, path in files:
            if path is not None and path == own_file:
                with suppress(FileNotFoundError):
                    os.remove(path)
            if lock is not None:
                lock.release()
        self.filelocks = self.file_paths = self.filelock = self.cache_file_name = None

    @contextmanager
    def _in_one_thread(self, adding: bool) -> Iterator[None]:
        """Refuse a second thread, whose texts would mix with those of the first.

        Args:
            adding: texts come from this thread; those that were added must have, too.
        """
        thread = threading.get_ident()
        with _ENTRANCE:
            alive = {running.ident for running in threading.enumerate()}
            other_inside = self._thread not in (None, thread)
            other_adds = adding and self._texts and self._adder != thread
            if other_inside or (other_adds and self._adder in alive):
                raise RuntimeError(
                    "This metric is in use by another thread, with whose texts it would mix these. "
                    "Load a metric for each thread: evaluate.load gives a new one at every call."
                )
            previous, self._thread = self._thread, thread
            if adding:
                self._adder = thread
        try:
            yield
        finally:
            self._thread = previous

    def _compute(self, predictions: Sequence[str] | Sequence[Chat], **kwargs: object) -> dict:
        """Compute by `compute`, whose arguments these are."""
        if kwargs.get("model_id") is None and kwargs.get("model") is None:
            kwargs["model_id"] = None if self.config_name == "default" else self.config_name
        return compute_with(self._models, {"predictions": predictions} | kwargs)

    _compute.__signature__ = _ARGUMENTS

    estimate_ratio = staticmethod(estimate_ratio_of_text)
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
    ) -> LanguageModel:
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
