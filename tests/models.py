"""Tiny random models and in-memory tokenizers that the tests share.

Weights are drawn with a large spread, so that every token has logits of its own; as they are
initialised, tiny models find nearly all tokens equally likely and would agree with a wrong metric.
"""

import torch
import transformers
from tokenizers import Tokenizer, normalizers, pre_tokenizers, processors
from tokenizers import models as token_models
from transformers.cache_utils import Cache

# Some of what is tested came with transformers 5.
NEWEST = int(transformers.__version__.split(".")[0]) >= 5
VOCABULARY = 80
BOS, EOS, PAD = 0, 1, 2
# The special tokens come first; word w7 has id 7.
FIRST_WORD = 3
CONTEXT = 16

_SIZES = {"vocab_size": VOCABULARY, "bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD}
_LLAMA = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": CONTEXT,
}
_GPT = {"n_positions": CONTEXT, "n_embd": 32, "n_layer": 2, "n_head": 2}

# Each family has something of its own in its positions, its head or its layers.
ARCHITECTURES = {
    "gpt2": ("GPT2", _GPT),
    "llama": ("Llama", _LLAMA),
    "opt": (
        "OPT",
        {
            "hidden_size": 32,
            "word_embed_proj_dim": 32,
            "ffn_dim": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "max_position_embeddings": CONTEXT,
        },
    ),
    # Caps far below the size of the logits: without them every number is another.
    "gemma2": (
        "Gemma2",
        _LLAMA
        | {
            "head_dim": 16,
            "sliding_window": 6,
            "final_logit_softcapping": 1.0,
            "attn_logit_softcapping": 1.0,
            "query_pre_attn_scalar": 16,
        },
    ),
    "bloom": ("Bloom", {"hidden_size": 32, "n_layer": 2, "n_head": 2}),
    "mamba": (
        "Mamba",
        {"hidden_size": 16, "state_size": 4, "num_hidden_layers": 2, "time_step_rank": 4},
    ),
    "granite": ("Granite", _LLAMA | {"logits_scaling": 3.0}),
    "cohere": ("Cohere", _LLAMA | {"logit_scale": 0.25}),
    "mixtral": ("Mixtral", _LLAMA | {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "gptj": ("GPTJ", _GPT | {"rotary_dim": 4}),
    "codegen": (
        "CodeGen",
        {
            "n_positions": CONTEXT,
            "n_ctx": CONTEXT,
            "n_embd": 32,
            "n_layer": 2,
            "n_head": 4,
            "rotary_dim": 4,
        },
    ),
    "falcon": ("Falcon", {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}),
    "rwkv": (
        "Rwkv",
        {
            "hidden_size": 16,
            "attention_hidden_size": 16,
            "num_hidden_layers": 2,
            "context_length": CONTEXT,
        },
    ),
}

# Each is tried only where its trait matters; most are of transformers 5.
KINDS_OF_LAYERS = {"sliding_attention": "default", "full_attention": "dynamic"}
UNUSUAL = {
    "olmo3": (
        "Olmo3",  # rotary settings for each kind of layers
        _LLAMA
        | {
            "layer_types": ["full_attention"] * 2,
            "rope_parameters": {
                layers: {"rope_type": kind, "rope_theta": 10000.0, "factor": 4.0}
                for layers, kind in KINDS_OF_LAYERS.items()
            },
        },
    ),
    "llama4": (
        "Llama4Text",  # attention within chunks of the text
        _LLAMA
        | {
            "head_dim": 16,
            "intermediate_size_mlp": 32,
            "num_local_experts": 2,
            "attention_chunk_size": 8,
            "layer_types": ["chunked_attention", "full_attention"],
        },
    ),
    "roberta": (
        "Roberta",  # padding has no position
        {
            "hidden_size": 32,
            "intermediate_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "max_position_embeddings": CONTEXT + PAD + 1,
            "is_decoder": True,
        },
    ),
}


def make_model(name: str, seed: int = 0, spread: float = 0.3, **config) -> torch.nn.Module:
    """Build a tiny causal language model of one of these architectures, with lively random weights."""
    prefix, settings = (ARCHITECTURES | UNUSUAL)[name]
    config = getattr(transformers, f"{prefix}Config")(**(_SIZES | settings | config))
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config)
    enliven(model, seed, spread)
    return model.eval()


@torch.no_grad()
def enliven(model: torch.nn.Module, seed: int = 0, spread: float = 0.3) -> None:
    """Draw every matrix anew with a standard deviation of `spread`."""
    torch.manual_seed(seed)
    for name, parameter in model.named_parameters():
        if parameter.ndim >= 2 and not name.endswith("A_log"):  # Mamba's poles must stay stable
            parameter.normal_(std=spread)


@torch.no_grad()
def make_uniform_model(name: str = "gpt2", **config) -> torch.nn.Module:
    """Build a model whose logits are all zero: its perplexity is the size of its vocabulary."""
    model = make_model(name, **config)
    model.get_output_embeddings().weight.zero_()
    return model


def words(ids) -> str:
    """The text whose tokens under `make_tokenizer` have these ids."""
    return " ".join(f"w{number}" for number in ids)


def random_text(num_tokens: int, seed: int = 0, vocabulary: int = VOCABULARY) -> str:
    generator = torch.Generator().manual_seed(seed)
    return words(torch.randint(FIRST_WORD, vocabulary, (num_tokens,), generator=generator).tolist())


def make_tokenizer(
    *,
    adds_bos: bool = False,
    adds_eos: bool = False,
    bos: bool = True,
    eos: bool = True,
    pad: bool = True,
    vocabulary: int = VOCABULARY,
    lowercase: bool = False,
    **kwargs,
):
    """Build a fast tokenizer that splits at white space: word w7 has id 7.

    Args:
        adds_bos, adds_eos: put these special tokens around a text when encoding by default.
        bos, eos, pad: whether the tokenizer has such a token at all.
        kwargs: for `PreTrainedTokenizerFast`.
    """
    ids = {"<bos>": BOS, "<eos>": EOS, "<pad>": PAD}
    ids |= {f"w{number}": number for number in range(FIRST_WORD, vocabulary)}
    backend = Tokenizer(token_models.WordLevel(ids, unk_token="w3"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if lowercase:
        backend.normalizer = normalizers.Lowercase()
    if adds_bos or adds_eos:
        template = ["<bos>"] * adds_bos + ["$A"] + ["<eos>"] * adds_eos
        backend.post_processor = processors.TemplateProcessing(
            single=" ".join(template), special_tokens=[("<bos>", BOS), ("<eos>", EOS)]
        )
    special = {
        "bos_token": bos and "<bos>",
        "eos_token": eos and "<eos>",
        "pad_token": pad and "<pad>",
    }
    special = {name: token for name, token in special.items() if token}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **(special | kwargs))


def make_byte_tokenizer(**kwargs):
    """Build a byte-level tokenizer: every byte of UTF-8 is a token, so characters are split."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    ids = {"<bos>": BOS, "<eos>": EOS, "<pad>": PAD}
    ids |= {byte: number for number, byte in enumerate(alphabet, FIRST_WORD)}
    backend = Tokenizer(token_models.BPE(ids, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<bos>", eos_token="<eos>", pad_token="<pad>", **kwargs
    )


class SlowTokenizer(transformers.PreTrainedTokenizer):
    """The words of `make_tokenizer` in plain Python; it gives no offsets."""

    model_input_names = ("input_ids", "attention_mask")
    names = ("<bos>", "<eos>", "<pad>", *(f"w{n}" for n in range(FIRST_WORD, VOCABULARY)))

    def __init__(self, **kwargs):
        super().__init__(bos_token="<bos>", eos_token="<eos>", pad_token="<pad>", **kwargs)

    @property
    def vocab_size(self):
        return VOCABULARY

    def get_vocab(self):
        return {name: number for number, name in enumerate(self.names)}

    def _tokenize(self, text, **kwargs):
        return text.split()

    def _convert_token_to_id(self, token):
        return self.names.index(token) if token in self.names else FIRST_WORD

    def _convert_id_to_token(self, index):
        return self.names[index]


def save(folder, model, tokenizer) -> str:
    """Write a model and its tokenizer to a folder, for `model_id`."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def forget(model, num_tokens=range(1, 10**6)):
    """Let a GPT-2 misread what follows its cache, where so many tokens are read at once."""

    def spoil(module, args, kwargs):
        kept = [value for value in (*args, *kwargs.values()) if isinstance(value, Cache | tuple)]
        if any(map(num_kept, kept)) and args[0].shape[1] in num_tokens:
            return (args[0].flip(-1), *args[1:]), kwargs
        return args, kwargs

    model.transformer.h[1].register_forward_pre_hook(spoil, with_kwargs=True)
    return model


def num_kept(cache):
    """How many tokens a layer's cache holds: a tuple of keys and values before transformers 4.48."""
    return cache[0].shape[-2] if isinstance(cache, tuple) else cache.get_seq_length(1)
