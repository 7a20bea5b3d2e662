"""Round the weights of a model to a few bits, to measure the loss.

    python demo_model/round_weights.py --bits 4 --output /tmp/rounded
    python score.py samples/story.txt --model_id /tmp/rounded --reference demo_model

Every matrix but the embeddings is rounded to the nearest, in groups of neighbouring weights that share a
scale, as the simplest of quantisers do (Dettmers and Zettlemoyer, The case for 4-bit precision, 2023).  The
rounded weights are kept as ordinary numbers: nothing gets smaller or faster, only worse.
"""

import argparse
import os
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

GROUP = 32


@torch.no_grad()
def round_weights(model: torch.nn.Module, bits: int) -> torch.nn.Module:
    """Round the matrices of a model in place, to 2^bits - 1 levels from -max to max of each group."""
    if not 2 <= bits <= 16:
        raise ValueError(f"`bits` must be between 2 and 16, got {bits}.")
    embeddings = {id(m.weight) for m in model.modules() if isinstance(m, torch.nn.Embedding)}
    for weight in model.parameters():
        if weight.ndim == 2 and id(weight) not in embeddings:
            weight.copy_(rounded(weight.float(), bits))
    return model


def rounded(weight: torch.Tensor, bits: int) -> torch.Tensor:
    """The nearest of the levels of its group to each weight (rows, columns)."""
    largest_level = 2 ** (bits - 1) - 1
    pieces = []
    for group in weight.split(GROUP, dim=1):
        scale = group.abs().amax(1, keepdim=True).clamp_min(1e-30) / largest_level
        pieces.append((group / scale).round() * scale)
    return torch.cat(pieces, 1)


def load_rounded(folder: str | os.PathLike, bits: int = 4) -> tuple[torch.nn.Module, object]:
    """Load a model in single precision with its weights rounded, and its tokenizer."""
    model = AutoModelForCausalLM.from_pretrained(folder).float().eval()
    return round_weights(model, bits), AutoTokenizer.from_pretrained(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default=str(Path(__file__).resolve().parent))
    parser.add_argument("--bits", type=int, default=4)
    parser.add_argument("--output", required=True)
    args = parser.parse_args()
    for part in load_rounded(args.model, args.bits):
        part.save_pretrained(args.output)


if __name__ == "__main__":
    main()
