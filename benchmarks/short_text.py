"""Compare a call with one forward pass, for a few words or one window, and a live model.

Everything that may have changed since the last call is looked at again: weights, tokenizer, modules.
"""

import torch
import transformers
from cases import ROOT, Setup
from measure import ratio, time_in_turns
from workloads import make_text

from perplexity_sliding import compute

OURS, FORWARD = "ours", "a forward pass"
CALLS = 20  # to a turn: a single one is too short to be timed


def bundled_model(repetitions: int) -> dict:
    """Times with the bundled model."""
    folder = ROOT / "demo_model"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    name = f"the bundled model, {model.config.num_hidden_layers} layers"
    return short_text(name, model.eval(), tokenizer, "She closed the door.", repetitions)


def gpt2(setup: Setup, repetitions: int, tokens: int = 5) -> dict:
    """Times with a GPT-2 of a shape."""
    name = f"GPT-2, {setup.model.config.n_layer} layers of {setup.model.config.n_embd}"
    name += "" if tokens == 5 else f", {tokens} tokens"
    text = make_text(tokens, setup.vocabulary)
    return short_text(name, setup.model, setup.tokenizer, text, repetitions)


def short_text(name: str, model: object, tokenizer: object, text: str, repetitions: int) -> dict:
    """Times of one text of a few tokens and of one forward pass over as many, in turns."""
    ids = tokenizer(text, return_tensors="pt").input_ids

    def ours() -> None:
        for _ in range(CALLS):
            compute([text], model=model, tokenizer=tokenizer)

    @torch.inference_mode()
    def forward() -> None:
        for _ in range(CALLS):
            model(input_ids=ids, use_cache=False)

    runs = {OURS: ours, FORWARD: forward}
    for run in runs.values():
        run()
    seconds = time_in_turns(runs, repetitions)
    return {
        "name": f"a short text, live model: {name}",
        "seconds": seconds,
        "ratios": {f"{OURS} / {FORWARD}": ratio(seconds, [OURS], [FORWARD])},
    }
