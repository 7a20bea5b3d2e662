"""Advice for long runs: half precision, if the processor supports it."""

import argparse
from pathlib import Path

DESCRIPTION = Path("/proc/cpuinfo")
# Linux's names of the instructions of Intel, AMD and Arm that multiply bfloat16.
INSTRUCTIONS = {"avx512_bf16", "amx_bf16", "bf16"}
HALF = (
    "This processor multiplies bfloat16: --dtype bfloat16 may be faster, and changes the perplexity "
    "slightly (docs/speed.md)."
)


def of_long_runs(args: argparse.Namespace) -> str | None:
    """Return advice on a faster run, or None. Call it when the model is open."""
    import torch

    # a server's has its precision already, and a file's of llama.cpp
    is_elsewhere = "://" in args.model_id or args.model_id.endswith(".gguf")
    chooses = args.dtype is None and not is_elsewhere
    on_cpu = args.device == "cpu" or (args.device is None and not torch.cuda.is_available())
    return HALF if chooses and on_cpu and multiplies_bfloat16() else None


def multiplies_bfloat16() -> bool:
    """Return whether the processor multiplies bfloat16; False if unknown, as outside Linux."""
    return bool(INSTRUCTIONS & set(described().split()))


def described() -> str:
    return DESCRIPTION.read_text() if DESCRIPTION.exists() else ""
