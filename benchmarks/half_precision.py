"""Compare bfloat16 with float32 on this processor: time and change of perplexity.

    python benchmarks/half_precision.py                                 # the bundled model: both
    python benchmarks/half_precision.py --model openai-community/gpt2   # another one
    python benchmarks/half_precision.py --shape gpt2                    # random weights: time alone

The two take turns; shown are the median and the extremes of the ratios.
"""

import argparse
import sys
from pathlib import Path

import torch
import transformers
from measure import now, ratio
from workloads import make_model, make_text, make_tokenizer

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from perplexity_sliding import compute  # noqa: E402
from perplexity_sliding.cli.advice import described, multiplies_bfloat16  # noqa: E402

HALF, WHOLE = "bfloat16", "float32"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=str(ROOT / "demo_model"))
    parser.add_argument("--shape", help="of a model with random weights instead")
    parser.add_argument("--text", default=str(ROOT / "samples" / "story.txt"))
    parser.add_argument("--repetitions", type=int, default=5)
    args = parser.parse_args()
    torch.set_grad_enabled(False)
    models, tokenizer, text = of_shape(args.shape) if args.shape else of_name(args.model, args.text)
    seconds: dict[str, list[float]] = {WHOLE: [], HALF: []}
    perplexities = {}
    for turn in range(args.repetitions + 1):
        for name, model in models.items():
            began = now()
            result = compute([text], model=model, tokenizer=tokenizer)
            perplexities[name] = result["perplexity"]
            if turn:  # the first call looks at the model
                seconds[name].append(now() - began)
    times = ratio(seconds, [HALF], [WHOLE])
    print(
        f"{processor()}, {torch.get_num_threads()} threads; multiplies bfloat16: {multiplies_bfloat16()}"
    )
    print(f"time, {HALF} / {WHOLE}: {times['median']:.2f} ({times['low']:.2f}-{times['high']:.2f})")
    print(f"perplexity: {100 * (perplexities[HALF] / perplexities[WHOLE] - 1):+.3f} %")


def processor() -> str:
    names = (line for line in described().splitlines() if line.startswith("model name"))
    return next(names, "model name: unknown").partition(": ")[2]


def of_name(name: str, path: str) -> tuple[dict, object, str]:
    models = {
        kind: transformers.AutoModelForCausalLM.from_pretrained(name)
        .to(getattr(torch, kind))
        .eval()
        for kind in (WHOLE, HALF)
    }
    tokenizer = transformers.AutoTokenizer.from_pretrained(name)
    return models, tokenizer, Path(path).read_text("utf-8")


def of_shape(shape: str) -> tuple[dict, object, str]:
    models = {kind: make_model(shape).to(getattr(torch, kind)) for kind in (WHOLE, HALF)}
    vocabulary = models[WHOLE].config.vocab_size
    length = 2 * models[WHOLE].config.n_positions
    return models, make_tokenizer(vocabulary), make_text(length, vocabulary)


if __name__ == "__main__":
    main()
