"""Compare short calls with what no tool can do without: a forward pass, and the guide's loop.

    python benchmarks/short_text.py                       # this checkout's package
    python benchmarks/short_text.py --against ../former   # and that of another checkout, in turns

Five words under a live model, beside bare forward passes over the same tokens; and the first call with
a model on 50 tokens, live and by name, beside the loop of transformers' guide.  Processor time of one
thread; each round is a process of its own, in which another model was called before.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import transformers
from measure import ratio, time_in_turns
from peers import guide_loop
from workloads import SHAPES, make_model, make_text, make_tokenizer

ROOT = Path(__file__).resolve().parent.parent
CALLS, TURNS = 5, 4  # a single call is too short to be timed
NUM_TOKENS, STRIDE = 50, 512
MODELS = ("bundled model", "GPT-2, 12 layers of 128", "vocabulary of 128,256")
ROWS = {  # what is divided by what
    **{f"five words, {m}: ours / forward pass": (f"ours, {m}", f"forward, {m}") for m in MODELS},
    "first call on 50 tokens, live / guide": ("live", "guide"),
    "first call on 50 tokens, by name / guide that loads": ("by name", "guide, by name"),
    "first call on 50 tokens, by name without loading / guide": ("without loading", "guide"),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--against", type=Path, help="another checkout, measured in turns")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--shape", choices=SHAPES, default="gpt2", help="of the first calls")
    parser.add_argument("--measure", metavar="FOLDER", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        torch.set_num_threads(1)
        transformers.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        seconds = five_words() | first_calls(Path(options.measure), options.shape)
        print(json.dumps(seconds))
        return
    trees = {"here": ROOT} | ({"against": options.against.resolve()} if options.against else {})
    rounds: dict[str, list[dict]] = {name: [] for name in trees}
    with tempfile.TemporaryDirectory() as scratch:
        for _ in range(options.repetitions):
            for name, tree in trees.items():
                rounds[name].append(measure_apart(tree, scratch, options.shape))
    for name, measured in rounds.items():
        print(f"\n{name}: {trees[name]}")
        seconds = {key: [each[key] for each in measured] for key in measured[0]}
        for row, (above, below) in ROWS.items():
            found = ratio(seconds, [above], [below])
            print(
                f"  {row:62} {found['median']:6.2f}   ({found['low']:.2f} to {found['high']:.2f})"
            )


def measure_apart(tree: Path, scratch: str, shape: str) -> dict:
    """Measure once in a new process that imports the package of a checkout."""
    command = [sys.executable, __file__, "--measure", scratch, "--shape", shape]
    environment = os.environ | {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def five_words() -> dict[str, float]:
    """Time calls of five words under live models, and forward passes over their tokens."""
    from perplexity_sliding import compute

    demo = str(ROOT / "demo_model")
    bundled = transformers.AutoModelForCausalLM.from_pretrained(demo, dtype=torch.float32).eval()
    loaded = (
        (bundled, transformers.AutoTokenizer.from_pretrained(demo)),
        with_tokenizer("narrow"),
        with_tokenizer("large vocabulary"),
    )
    seconds = {}
    for name, (model, tokenizer) in zip(MODELS, loaded):
        text = "She closed the door softly." if model is bundled else make_text(5, 4000)
        ids = tokenizer(text, return_tensors="pt").input_ids

        def ours() -> None:
            for _ in range(CALLS):
                compute([text], model=model, tokenizer=tokenizer)  # noqa: B023

        @torch.inference_mode()
        def forward() -> None:
            for _ in range(CALLS):
                model(input_ids=ids, use_cache=False)  # noqa: B023

        runs = {f"ours, {name}": ours, f"forward, {name}": forward}
        _, *turns = zip(*time_in_turns(runs, 1 + TURNS).values())  # the first warms up
        seconds |= zip(runs, map(sum, zip(*turns)))
    return seconds


def first_calls(folder: Path, shape: str) -> dict[str, float]:
    """Time a first call on one text under a model that nobody has called yet."""
    from perplexity_sliding import compute

    model, tokenizer = with_tokenizer(shape)
    text = make_text(NUM_TOKENS, len(tokenizer) - 1)
    if not (folder / "model").exists():
        model.save_pretrained(folder / "model")
        tokenizer.save_pretrained(folder / "model")
    named = folder / f"model-{os.getpid()}"
    named.symlink_to(folder / "model")
    context = model.config.n_positions

    def load() -> tuple:
        loaded = transformers.AutoModelForCausalLM.from_pretrained(named, dtype=torch.float32)
        return loaded.eval(), transformers.AutoTokenizer.from_pretrained(named)

    runs: dict[str, Callable[[], object]] = {
        "loading": load,
        "guide, by name": lambda: guide_loop(*load(), text, context, STRIDE),
        "by name": lambda: compute([text], model_id=str(named), stride=STRIDE),
        "guide": lambda: guide_loop(model, tokenizer, text, context, STRIDE),
        "live": lambda: compute([text], model=model, tokenizer=tokenizer, stride=STRIDE),
    }
    load()  # the first time, modules are imported and files are read from the disk
    seconds = {name: timed(run) for name, run in runs.items()}
    return seconds | {"without loading": seconds["by name"] - seconds["loading"]}


def with_tokenizer(shape: str) -> tuple:
    model = make_model(shape)
    return model, make_tokenizer(model.config.vocab_size)


def timed(run: Callable[[], object]) -> float:
    began = time.process_time()
    run()
    return time.process_time() - began


if __name__ == "__main__":
    main()
