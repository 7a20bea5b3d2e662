#!/usr/bin/env python3
"""Convert a local Hugging Face GPT-2 folder to an f32 GGUF file for llama.cpp.

The folder holds config.json, model.safetensors (any float dtype) and a
byte-level BPE tokenizer.json with the GPT-2 pre-tokenizer, whose
<|endoftext|> serves as bos, eos and unk.

    convert_gguf.py MODEL_DIR OUT.gguf [--add-bos {0,1}]

llama.cpp's own convert_hf_to_gguf.py does not take such a model as it is: it
wants `n_ctx` in config.json (transformers 5 no longer writes it) and knows
pre-tokenizers only by a hash over the whole tokenizer.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from gguf import GGUFWriter, LlamaFileType, TokenType
from safetensors.torch import load_file

# Hugging Face -> llama.cpp (LLM_ARCH_GPT2) names; per-layer ones without prefix.
GLOBAL = {
    "wte.weight": "token_embd.weight",
    "wpe.weight": "position_embd.weight",
    "ln_f.weight": "output_norm.weight",
    "ln_f.bias": "output_norm.bias",
}
LAYER = {
    "ln_1": "attn_norm",
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "ln_2": "ffn_norm",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
}
CONV1D = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
EOT = "<|endoftext|>"


def tensors(folder, config):
    """Yield (llama.cpp name, float32 array) for every weight of the model."""
    state = load_file(folder / "model.safetensors")
    state = {name.removeprefix("transformer."): t for name, t in state.items()}
    # Old checkpoints carry the causal mask as a buffer; llama.cpp has its own.
    state = {n: t for n, t in state.items() if not n.endswith((".attn.bias", ".attn.masked_bias"))}

    def take(name, transpose=False):
        t = state.pop(name).to(torch.float32)
        return np.ascontiguousarray((t.T if transpose else t).numpy())

    # Without an output.weight llama.cpp takes token_embd.weight: tied weights.
    head = state.pop("lm_head.weight", None)
    if head is not None and not torch.equal(head, state["wte.weight"]):
        yield "output.weight", head.to(torch.float32).numpy()
    for source, target in GLOBAL.items():
        yield target, take(source)
    for i in range(config["n_layer"]):
        for source, target in LAYER.items():
            # Conv1D stores (in, out); ggml, like torch.nn.Linear, (out, in).
            yield f"blk.{i}.{target}.weight", take(f"h.{i}.{source}.weight", source in CONV1D)
            yield f"blk.{i}.{target}.bias", take(f"h.{i}.{source}.bias")
    if state:
        raise ValueError(f"tensors of no known place: {sorted(state)}")


def check(config, tokenizer):
    """Refuse what llama.cpp's GPT-2 graph or tokenizer would compute differently."""
    model, pre = tokenizer["model"], tokenizer["pre_tokenizer"]
    same = {
        "a GPT-2 architecture": config["model_type"] == "gpt2",
        "a tanh GELU": config["activation_function"] in ("gelu_new", "gelu_pytorch_tanh"),
        "plainly scaled attention": config.get("scale_attn_weights", True)
        and not config.get("scale_attn_by_inverse_layer_idx"),
        "no cross-attention": not config.get("add_cross_attention"),
        "a BPE tokenizer": model["type"] == "BPE" and not model.get("ignore_merges"),
        "no normaliser": tokenizer["normalizer"] is None,
        "GPT-2's pre-tokenizer": pre["type"] == "ByteLevel"
        and pre["use_regex"]
        and not pre["add_prefix_space"],
    }
    missing = [name for name, holds in same.items() if not holds]
    if missing:
        raise ValueError(f"the model must have {', '.join(missing)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", type=Path, help="Hugging Face model folder")
    parser.add_argument("out", type=Path, help="GGUF file to write")
    parser.add_argument(
        "--add-bos",
        type=int,
        choices=(0, 1),
        default=0,
        help="tokenizer.ggml.add_bos_token (default 0)",
    )
    args = parser.parse_args()

    config = json.loads((args.model / "config.json").read_text("utf-8"))
    tokenizer = json.loads((args.model / "tokenizer.json").read_text("utf-8"))
    check(config, tokenizer)

    vocab = dict(tokenizer["model"]["vocab"])
    special = set()
    for token in tokenizer["added_tokens"]:
        vocab[token["content"]] = token["id"]
        if token["special"]:
            special.add(token["content"])
    tokens = sorted(vocab, key=vocab.get)
    if [vocab[token] for token in tokens] != list(range(config["vocab_size"])):
        raise ValueError("the token ids have gaps")
    merges = [m if isinstance(m, str) else " ".join(m) for m in tokenizer["model"]["merges"]]

    n_embd = config["n_embd"]
    writer = GGUFWriter(args.out, "gpt2")
    writer.add_name(args.model.resolve().name)
    writer.add_file_type(LlamaFileType.ALL_F32)
    writer.add_block_count(config["n_layer"])
    writer.add_context_length(config["n_positions"])
    writer.add_embedding_length(n_embd)
    writer.add_feed_forward_length(config.get("n_inner") or 4 * n_embd)
    writer.add_head_count(config["n_head"])
    writer.add_layer_norm_eps(config["layer_norm_epsilon"])

    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(
        [TokenType.CONTROL if t in special else TokenType.NORMAL for t in tokens]
    )
    writer.add_token_merges(merges)
    writer.add_bos_token_id(vocab[EOT])
    writer.add_eos_token_id(vocab[EOT])
    writer.add_unk_token_id(vocab[EOT])
    writer.add_add_bos_token(bool(args.add_bos))

    for name, array in tensors(args.model, config):
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
