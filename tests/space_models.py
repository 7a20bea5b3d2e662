"""Models for the tests of the Space: the bundled one, tiny ones, and the service over them."""

import sys
from pathlib import Path

from models import make_byte_tokenizer, make_model, make_tokenizer, save

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.append(str(ROOT))  # app.py and the package `space` stand there

BYTES = 259  # three special tokens and every byte
CONTEXT = 64


def byte_model(folder: Path, seed: int = 0, context: int = CONTEXT, **config) -> str:
    """Write a tiny GPT-2 over bytes, which reads any text."""
    model = make_model("gpt2", seed, vocab_size=BYTES, n_positions=context, **config)
    return save(folder, model, make_byte_tokenizer())


def word_model(folder: Path, name: str = "gpt2", seed: int = 1, **config) -> str:
    """Write a tiny model over the words w3, w4, … of `models.make_tokenizer`."""
    return save(folder, make_model(name, seed, **config), make_tokenizer())


def bundled_model(folder: Path) -> str:
    """The bundled model, or a tiny one where it is not there."""
    bundled = ROOT / "demo_model"
    return str(bundled) if (bundled / "model.safetensors").exists() else byte_model(folder)
