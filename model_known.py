"""Models that behave in long passes as they do in short ones, so that short ones tell all.

An architecture stands here after `benchmarks/architectures.py --known` has found that what a made-up
text of 256 tokens shows of it is what passes of full length show.
"""

import torch

from .model_code import KNOWN_PACKAGES, is_known, package_of
from .model_digest import modifications
from .model_logits import has_forward_of_transformers
from .model_states import grows_frequencies

# Values of `model_type`.
SWEPT = frozenset(
    [
        "apertus",
        "arcee",
        "biogpt",
        "bloom",
        "codegen",
        "cohere",
        "ctrl",
        "exaone4",
        "falcon",
        "gemma",
        "glm",
        "glm4",
        "gpt2",
        "gpt_bigcode",
        "gpt_neox",
        "gpt_neox_japanese",
        "gptj",
        "granite",
        "helium",
        "hunyuan_v1_dense",
        "jais2",
        "llama",
        "ministral",
        "mistral",
        "mpt",
        "nanochat",
        "nemotron",
        "olmo",
        "olmo2",
        "olmo3",
        "openai-gpt",
        "opt",
        "persimmon",
        "phi",
        "phi3",
        "qwen2",
        "qwen3",
        "seed_oss",
        "smollm3",
        "stablelm",
        "starcoder2",
        "xglm",
    ]
)
ATTENTION = (None, "eager", "sdpa", "flash_attention_2", "flash_attention_3")
# Names of the settings of layers that see only some of the tokens before.
LOCAL_SETTINGS = ("sliding_window", "attention_chunk_size", "attention_window")


def is_known_architecture(model: torch.nn.Module) -> bool:
    """Return whether a model is one of those, with nothing changed that can be seen."""
    config = getattr(model, "config", None)
    return (
        getattr(config, "model_type", None) in SWEPT
        and getattr(config, "_attn_implementation", None) in ATTENTION
        and not grows_frequencies(model)
        and not has_local_layers(config)
        and has_forward_of_transformers(model)
        and all(map(is_of_library, model.modules()))
        and not modifications(model)
    )


def has_local_layers(config: object) -> bool:
    """Return whether layers see only some of the tokens before, as the configuration says."""
    kinds = getattr(config, "layer_types", None)
    if kinds is not None:
        return any(kind != "full_attention" for kind in kinds)
    return any(getattr(config, name, None) is not None for name in LOCAL_SETTINGS)


def is_of_library(module: torch.nn.Module) -> bool:
    """Return whether a module is torch's, transformers', peft's or accelerate's, and runs as such."""
    own = vars(module)
    hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
    return (
        package_of(type(module).__module__) in KNOWN_PACKAGES
        and ("forward" not in own or ("_hf_hook" in own and is_known(own["forward"])))
        and all(map(is_known, hooks))
    )
