"""Compare the metric with plain forward passes on every architecture that can be built small.

    python benchmarks/architectures.py [name ...] [--json FILE] [--known]

Each causal language model of the installed transformers is built with a small configuration and
random weights.  The metric scores two texts with it in overlapping windows; a loop of plain forward
passes, one window at a time, does the same.  A model either agrees, or is refused with a reason;
one that does neither is an error of ours.

With `--known`, each is asked instead whether short passes show what passes of 1,024 tokens show: the
list for `models/probes.py`.
"""

import argparse
import inspect
import json
import math
import signal
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import evaluate
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

ROOT = Path(__file__).resolve().parent.parent
METRIC = ROOT / "perplexity_sliding.py"
sys.path.insert(0, str(ROOT))

from perplexity_sliding.models import probes  # noqa: E402
from perplexity_sliding.models.language_model import LanguageModel  # noqa: E402

VOCABULARY = 80
CONTEXT, WINDOW, STRIDE = 128, 64, 20
LONG_CONTEXT = 1024
TEXT_LENGTHS = (150, 37)
TOLERANCE = 1e-5
TIME_LIMIT_S = 60
LARGEST_SIZE = 20_000_000  # parameters
# What makes a model small, under the names that configurations give it.
SMALL = {
    "vocab_size": VOCABULARY,
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "embed_dim", "dim", "emb_dim"), 32),
    **dict.fromkeys(("word_embed_proj_dim", "embedding_size", "attention_hidden_size"), 32),
    **dict.fromkeys(
        ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers"), 2
    ),
    **dict.fromkeys(("encoder_layers", "num_decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("decoder_attention_heads", "encoder_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "multi_query_group_num", "num_kv_heads"), 2),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "n_inner", "d_ff", "dff", "d_inner"), 48),
    **dict.fromkeys(("decoder_ffn_dim", "encoder_ffn_dim", "ffn_hidden_size"), 48),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 16),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_top_k", "moe_k", "top_k_experts"), 2),
    **dict.fromkeys(("n_group", "topk_group", "n_shared_experts", "moe_num_shared_experts"), 1),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "seq_length"), CONTEXT),
    **dict.fromkeys(("max_seq_len", "max_sequence_length", "context_length"), CONTEXT),
    **dict.fromkeys(("head_dim", "attention_head_size", "d_kv", "kv_channels"), 8),
    **dict.fromkeys(("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"), 8),
    **dict.fromkeys(("kv_lora_rank", "q_lora_rank", "rotary_dim", "rope_head_dim"), 8),
    **dict.fromkeys(("state_size", "mamba_d_state", "ssm_state_size", "time_step_rank"), 4),
    **dict.fromkeys(("mamba_n_heads", "mamba_num_heads"), 4),
    **dict.fromkeys(("mamba_d_head", "mamba_head_dim"), 16),
    **dict.fromkeys(("mamba_n_groups", "n_groups"), 1),
    **dict.fromkeys(("linear_num_key_heads", "linear_num_value_heads"), 2),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), 8),
    **dict.fromkeys(("bos_token_id",), 0),
    **dict.fromkeys(("eos_token_id",), 1),
    **dict.fromkeys(("pad_token_id",), 2),
    "sliding_window": 24,
    "first_k_dense_replace": 1,
    **dict.fromkeys(("attn_layer_period", "expert_layer_period"), 2),
    **dict.fromkeys(("attn_layer_offset", "expert_layer_offset"), 1),
    "attn_layer_indices": [1],
    "is_decoder": True,
    "hidden_size_per_layer_input": 0,
    "vocab_size_per_layer_input": VOCABULARY,
    "num_kv_shared_layers": 0,
}
# What single architectures need on top, because parts of them must fit together.
SPECIAL: dict[str, dict] = {
    "bloom": {"hidden_size": 32, "n_head": 4},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "falcon_h1": {"mamba_d_ssm": 64},
    "reformer": {
        "attn_layers": ["local", "lsh"],
        "axial_pos_embds_dim": [16, 16],
        "axial_pos_shape": [8, 16],
        "num_buckets": 4,
        "lsh_attn_chunk_length": 16,
        "local_attn_chunk_length": 16,
    },
    "bigbird": {"block_size": 4, "num_random_blocks": 1},
    "mamba2": {"num_heads": 4, "head_dim": 16},
    "codegen": {"rotary_dim": 4},
    "gptj": {"rotary_dim": 4},
}


# Not every architecture takes all of these: what is left out and what is set instead, in turn.
ATTEMPTS = (
    ((), {}),
    (("head_dim",), {}),
    (("head_dim", "num_key_value_heads"), {}),
    ((), {"num_hidden_layers": 3, "num_layers": 3, "n_layer": 3}),
    (("head_dim",), {"num_hidden_layers": 4, "num_layers": 4, "n_layer": 4}),
    (("head_dim", "layer_types"), {"num_hidden_layers": 6, "num_layers": 6}),
)


class Outcome(NamedTuple):
    """The outcome of one architecture.

    Attributes:
        kind: "agrees", "refused", "disagrees", "fails", or "not built".
        detail: the relative difference of the perplexities, or a reason.
    """

    name: str
    kind: str
    detail: str


def architectures() -> list[str]:
    return list(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def build(name: str) -> torch.nn.Module:
    """Build a small model of an architecture, with random weights large enough to matter."""
    kind = transformers.CONFIG_MAPPING[name]
    failure = None
    for left_out, changes in ATTEMPTS:
        try:
            settings = small_settings(kind, left_out, changes)
            model = build_from(kind(**(settings | SPECIAL.get(name, {}))))
            plain_perplexity(model)
            return model
        except Exception as error:
            failure = failure or error
    raise failure


def build_from(config) -> torch.nn.Module:
    with torch.device("meta"):
        parameters = transformers.AutoModelForCausalLM.from_config(config).parameters()
        size = sum(parameter.numel() for parameter in parameters)
    if size > LARGEST_SIZE:
        raise ValueError(f"{size:,} parameters are not small")
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2 and min(parameter.shape) > 4:
                parameter.normal_(std=0.15)
    return model.eval()


def small_settings(kind: type, left_out: tuple[str, ...] = (), changes: dict | None = None) -> dict:
    """Arguments for a small configuration, including nested ones."""
    default = kind()
    small = {key: value for key, value in SMALL.items() if key not in left_out} | (changes or {})
    accepted = inspect.signature(kind.__init__).parameters.keys()
    names = accepted | getattr(kind, "attribute_map", {}).keys()
    settings = {key: value for key, value in small.items() if key in names}
    layers = small["num_hidden_layers"]
    if "layer_types" in accepted and getattr(default, "layer_types", None):
        kinds = list(dict.fromkeys(default.layer_types))
        kinds.sort(key=lambda layer: layer == "full_attention")  # some need one, and it last
        settings["layer_types"] = (kinds * layers)[-layers:]
    for key, nested in getattr(kind, "sub_configs", {}).items():
        part = getattr(default, key, None)
        nested = type(part) if part is not None and not isinstance(part, dict) else nested
        if nested is not transformers.AutoConfig:
            settings[key] = small_settings(nested, left_out, changes)
    return settings


def compare(name: str, metric) -> Outcome:
    """Build an architecture, score texts in both ways, and compare."""
    try:
        with time_limit(TIME_LIMIT_S):
            model = build(name)
            expected = plain_perplexity(model)
    except Exception as error:
        return Outcome(name, "not built", one_line(error))
    try:
        with time_limit(TIME_LIMIT_S), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = metric.compute(
                predictions=[" ".join(f"w{n}" for n in ids) for ids in texts()],
                model=model,
                tokenizer=make_tokenizer(),
                max_length=WINDOW,
                stride=STRIDE,
                add_start_token=False,
            )
    except ValueError as error:
        return Outcome(name, "refused", one_line(error))
    except Exception as error:
        return Outcome(name, "fails", one_line(error))
    difference = abs(result["perplexity"] / expected - 1)
    return Outcome(name, "agrees" if difference < TOLERANCE else "disagrees", f"{difference:.1e}")


def look(name: str, metric) -> Outcome:
    """Build an architecture for long passes, and examine it with short and long ones.

    It is "known" where the quick look accepts it and nothing is found in long passes.
    """
    limits = [key for key, value in SMALL.items() if value == CONTEXT]
    try:
        with time_limit(TIME_LIMIT_S):
            SMALL.update(dict.fromkeys(limits, LONG_CONTEXT))
            model = build(name)
    except Exception as error:
        return Outcome(name, "not built", one_line(error))
    finally:
        SMALL.update(dict.fromkeys(limits, CONTEXT))
    opened = LanguageModel.adopt(model, make_tokenizer())
    try:
        with time_limit(TIME_LIMIT_S), opened.in_use(), torch.inference_mode():
            quick = probes.look_quickly(model, name, opened.limit.length)
            opened.prepare(LONG_CONTEXT)
    except Exception as error:
        return Outcome(name, "refused", one_line(error))
    found = opened.findings
    known = quick is not None and found.prefixes_agree and not found.stateful
    return Outcome(name, "known" if known else "to be tried", f"{opened.limit.length} tokens")


def texts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return [
        torch.randint(3, VOCABULARY, (length,), generator=generator).tolist()
        for length in TEXT_LENGTHS
    ]


def make_tokenizer():
    """A tokenizer of words: w7 has id 7."""
    words = Tokenizer(models.WordLevel({f"w{n}": n for n in range(VOCABULARY)}, unk_token="w3"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=words)


@torch.inference_mode()
def plain_perplexity(model: torch.nn.Module) -> float:
    """Perplexity by plain forward passes, one window at a time; each token scored once."""
    total, count = 0.0, 0
    for ids in texts():
        scored_to = 1  # the first token has nothing before it
        for begin in range(0, len(ids), STRIDE):
            end = min(begin + WINDOW, len(ids))
            # Read what the metric reads: the last target is not an input.
            logits = model(torch.tensor([ids[begin : end - 1]])).logits[0].double()  # (T, V)
            nlls = -logits.log_softmax(-1)[range(end - 1 - begin), ids[begin + 1 : end]]
            total += nlls[scored_to - begin - 1 :].sum().item()
            count += end - scored_to
            scored_to = end
            if end == len(ids):
                break
    return math.exp(total / count)


@contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """Limit the processor time: some architectures cannot be built small."""

    def stop(*_):
        raise TimeoutError(f"took longer than {seconds} s")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:200]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="architectures; all by default")
    parser.add_argument("--json", metavar="FILE", help="also write the outcomes here")
    parser.add_argument("--known", action="store_true", help="compare short passes with long ones")
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    evaluate.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as cache:
        metric = evaluate.load(str(METRIC), cache_dir=cache)
        outcomes = []
        for name in args.names or architectures():
            outcomes.append((look if args.known else compare)(name, metric))
            print(*outcomes[-1], sep="\t", flush=True)
    if args.json:
        Path(args.json).write_text(json.dumps([outcome._asdict() for outcome in outcomes]))
    kinds = Counter(outcome.kind for outcome in outcomes)
    print(", ".join(f"{count} {kind}" for kind, count in kinds.most_common()))
    return int(bool(kinds["disagrees"] or kinds["fails"]))


if __name__ == "__main__":
    sys.exit(main())
