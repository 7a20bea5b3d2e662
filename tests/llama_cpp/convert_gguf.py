"""Convert a local Hugging Face folder of a Llama to an f32 GGUF file for llama.cpp.

The folder holds config.json, model.safetensors (any float dtype) and a byte-level BPE tokenizer.json with
the GPT-2 pre-tokenizer, whose <|endoftext|> serves as bos, eos and unk.  llama.cpp's own converter knows
pre-tokenizers only by a hash over the whole tokenizer.
"""

import json
from pathlib import Path

import numpy as np
import torch
from gguf import GGUFWriter, LlamaFileType, TokenType
from safetensors.torch import load_file

# Hugging Face -> llama.cpp (LLM_ARCH_LLAMA) names; per-layer ones without prefix.
GLOBAL = {"embed_tokens": "token_embd", "norm": "output_norm"}
LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
EOT = "<|endoftext|>"


def weights(folder, config):
    """Yield (llama.cpp name, float32 array) for every weight of the model."""
    state = load_file(folder / "model.safetensors")

    def take(name):
        return state.pop(f"model.{name}.weight").to(torch.float32).numpy()

    # Without an output.weight llama.cpp takes token_embd.weight: tied weights.
    head = state.pop("lm_head.weight", None)
    if head is not None and not torch.equal(head, state["model.embed_tokens.weight"]):
        yield "output.weight", head.to(torch.float32).numpy()
    for source, target in GLOBAL.items():
        yield f"{target}.weight", take(source)
    for i in range(config["num_hidden_layers"]):
        for source, target in LAYER.items():
            array = take(f"layers.{i}.{source}")
            if target in ("attn_q", "attn_k"):
                array = beside_each_other(array, config["num_attention_heads"])
            yield f"blk.{i}.{target}.weight", array
    if state:
        raise ValueError(f"tensors of no known place: {sorted(state)}")


def beside_each_other(matrix, heads):
    """Bring the two rows that a rotation turns beside each other, as llama.cpp has them.

    Hugging Face has the first of all pairs of a head before the second ones.
    """
    halves = matrix.reshape(heads, 2, -1, matrix.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(matrix.shape)


def convert(model, out, add_bos=False):
    """Write the GGUF file of a folder; `add_bos` is the vocabulary's flag for the start token."""
    model = Path(model)
    config = json.loads((model / "config.json").read_text("utf-8"))
    tokenizer = json.loads((model / "tokenizer.json").read_text("utf-8"))
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

    writer = GGUFWriter(out, "llama")
    writer.add_name(model.resolve().name)
    writer.add_file_type(LlamaFileType.ALL_F32)
    writer.add_vocab_size(config["vocab_size"])
    heads = config["num_attention_heads"]
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(heads)
    writer.add_rope_dimension_count(config["hidden_size"] // heads)
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])

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
    writer.add_add_bos_token(add_bos)

    for name, array in weights(model, config):
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
