"""Protocols of long-context papers and of fine-tuning, against loops written from their sources.

The windows token by token against the plans in reference.py; the perplexities against loops as a
reader of the source would write them, and run-clm against transformers' own Trainer.
"""

import math

import numpy as np
import pytest
import reference
import torch
import transformers
from models import CONTEXT, make_model, make_tokenizer, random_text, words

from perplexity_sliding.plan.windows import PlannedWindow, count_inputs, merge_windows, plan_windows
from perplexity_sliding.protocols import PROTOCOLS


def planned(num_tokens, length, stride, start, protocol):
    """What each window scores and sees: [{target: context}]."""
    return [
        {
            target: [reference.START] * window.start_token + list(range(window.begin, target))
            for target in range(window.first, window.end)
        }
        for window in plan_windows(num_tokens, length, stride, start, PROTOCOLS[protocol])
    ]


CASES = [(n, length, stride) for n in (1, 2, 5, 8, 9, 16, 17, 50) for length, stride in
         ((8, 3), (8, 7), (8, 1), (5, 2), (2, 1))]  # fmt: skip


@pytest.mark.parametrize("num_tokens, length, stride", CASES)
@pytest.mark.parametrize("start", [True, False])
def test_yarn_windows(num_tokens, length, stride, start):
    if not start and num_tokens == 1:
        pytest.skip("there is nothing to score")
    expected = reference.yarn(num_tokens, length, stride, start)
    ours = planned(num_tokens, length, stride, "every" if start else "none", "yarn")
    assert ours == [window for window in expected if window]


@pytest.mark.parametrize("num_tokens, length", [(1, 8), (7, 8), (8, 8), (9, 8), (50, 8)])
def test_yarn_truncated_windows(num_tokens, length):
    expected = reference.yarn_truncated(num_tokens, length, True)
    assert planned(num_tokens, length, length - 1, "every", "yarn-truncated") == expected
    assert len(expected) == 1


def test_a_curve_of_64_lengths_costs_what_the_longest_does():
    """YaRN's figure, 2k to 128k tokens: apart they read (1 + ... + 64) / 64 = 32.5 times as much."""
    lengths = [2048 * number for number in range(1, 65)]
    row = PROTOCOLS["yarn-truncated"]
    windows = [
        PlannedWindow(0, window, 0)
        for length in lengths
        for window in plan_windows(200_000, length, length - 1, "every", row)
    ]
    apart = sum(count_inputs(merge_windows([window])[0]) for window in windows)
    together = count_inputs(merge_windows(windows)[0])
    assert apart == sum(lengths) - 64 == 2048 * 64 * 65 // 2 - 64
    assert together == lengths[-1] - 1
    assert apart / together == pytest.approx(32.5, rel=1e-4)


@pytest.mark.parametrize("num_tokens", [12, 13, 14, 15, 16, 17, 30, 50, 51, 52, 53])
@pytest.mark.parametrize("length, stride", [(8, 4), (8, 3), (8, 8), (8, 1), (11, 1)])
def test_longlora_windows(num_tokens, length, stride):
    expected = reference.longlora(num_tokens, length, stride)
    assert planned(num_tokens, length, stride, "none", "longlora") == expected


@pytest.mark.parametrize("num_tokens", [1, 7, 8, 9, 50])
@pytest.mark.parametrize("length, stride", [(8, 1), (8, 8), (8, 3), (8, 4)])
def test_fairseq_windows(num_tokens, length, stride):
    ours = planned(num_tokens, length, stride, "once", "fairseq")
    merged = {target: seen for window in ours for target, seen in window.items()}
    assert sum(map(len, ours)) == len(merged)
    assert merged == reference.fairseq(num_tokens, length, stride)


# --- perplexities ---------------------------------------------------------------------------------

TEXTS = [random_text(90), random_text(40, seed=1), random_text(10, seed=2)]


@pytest.fixture(scope="module", params=["gpt2", "llama"])
def model(request):
    return make_model(request.param).double()


def close(value):
    return pytest.approx(value, rel=1e-5)


def encode(tokenizer, text, special=False):
    return tokenizer(text, add_special_tokens=special)["input_ids"]


@torch.no_grad()
def loss(model, row, num_labels):
    """The model's own mean loss over the last places of a row; its first place is never scored."""
    ids = torch.tensor([row])
    labels = ids.clone()
    labels[:, : max(0, len(row) - num_labels)] = -100
    return model(ids, labels=labels).loss.item()


@pytest.mark.parametrize("kind", [{}, {"bos": False}, {"adds_bos": True}])
@pytest.mark.parametrize("stride", [3, CONTEXT - 1])
def test_yarn(metric, model, kind, stride):
    """Every window's loss counts alike, over all texts; BOS before each if there is one."""
    tokenizer = make_tokenizer(**kind)
    head = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
    losses = []
    for text in TEXTS:
        ids = encode(tokenizer, text)
        for window in reference.yarn(len(ids), CONTEXT, stride, bool(head)):
            places = [
                place for place in [*window[max(window)], max(window)] if place != reference.START
            ]
            losses.append(loss(model, head + [ids[place] for place in places], len(window)))
    result = metric.compute(
        predictions=TEXTS, model=model, tokenizer=tokenizer, protocol="yarn", stride=stride
    )
    assert result["perplexity"] == close(math.exp(np.mean(losses)))
    assert result["num_windows"] == len(losses)


def test_yarn_strides_by_256(metric, tokenizer):
    model = make_model("llama", max_position_embeddings=300).double()
    text = random_text(600)
    ids, bos = encode(tokenizer, text), [tokenizer.bos_token_id]
    losses = [loss(model, bos + ids[:299], 299), loss(model, bos + ids[256:555], 256),
              loss(model, bos + ids[512:], 45)]  # fmt: skip
    result = metric.compute(predictions=[text], model=model, tokenizer=tokenizer, protocol="yarn")
    assert result["perplexity"] == close(math.exp(np.mean(losses)))


@pytest.mark.parametrize("kind", [{}, {"bos": False}])
@pytest.mark.parametrize("length", [7, CONTEXT])
def test_yarn_truncated(metric, model, kind, length):
    tokenizer = make_tokenizer(**kind)
    head = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
    rows = [head + encode(tokenizer, text)[: length - len(head)] for text in TEXTS]
    result = metric.compute(
        predictions=TEXTS,
        model=model,
        tokenizer=tokenizer,
        protocol="yarn-truncated",
        max_length=length,
    )
    assert result["perplexity"] == close(math.exp(np.mean([loss(model, r, len(r)) for r in rows])))


@pytest.mark.parametrize("length, stride", [(CONTEXT, 4), (9, 9)])
def test_longlora(metric, model, length, stride):
    """2.71828 to the mean of the losses of whole windows, the last of them left out."""
    tokenizer = make_tokenizer(adds_bos=True)
    ids = [token for text in TEXTS for token in encode(tokenizer, text, special=True)]
    begins = list(range(0, len(ids) - length, stride))[:-1]
    losses = [loss(model, ids[begin : begin + length], length) for begin in begins]
    result = metric.compute(
        predictions=TEXTS,
        model=model,
        tokenizer=tokenizer,
        protocol="longlora",
        max_length=length,
        stride=stride,
    )
    assert result["perplexity"] == pytest.approx(2.71828 ** np.mean(losses), rel=1e-5)
    assert result["num_tokens"] == len(begins) * (length - 1)


def test_of_several_scores_a_token_shows_that_with_the_most_context(metric, model):
    """Windows of LongLoRA overlap, and each scores all of its tokens."""
    tokenizer, text = make_tokenizer(), random_text(40)
    ids, length, stride = encode(tokenizer, text), 12, 4
    best = {}
    for window in reversed(reference.longlora(len(ids), length, stride)):
        nlls = reference.token_nlls(model, ids, window)
        best |= {place: (len(window[place]), nlls[place]) for place in window}
    result = metric.compute(
        predictions=[text],
        model=model,
        tokenizer=tokenizer,
        protocol="longlora",
        max_length=length,
        stride=stride,
        return_token_scores=True,
    )
    [scores] = result["token_scores"]
    for place, (seen, nll) in best.items():
        assert scores["context_length"][place] == seen
        assert scores["nll"][place] == close(nll)
    assert max(scores["context_length"]) == length - 1


@pytest.mark.parametrize("stride", [1, 5, CONTEXT])
def test_fairseq(metric, model, stride):
    """Lines with EOS behind each in one stream, and before it; base 2 comes to the same."""
    tokenizer = make_tokenizer()
    texts = [words([5, 6, 7]) + "\n\n" + words([8] * 20), words(range(10, 40)) + "\n"]
    eos = tokenizer.eos_token_id
    lines = [[5, 6, 7], [], [8] * 20, list(range(10, 40))]
    ids = [token for line in lines for token in [*line, eos]]
    nlls = reference.window_nlls(
        model, ids, reference.fairseq(len(ids), CONTEXT, stride), start_id=eos
    )
    result = metric.compute(
        predictions=texts, model=model, tokenizer=tokenizer, protocol="fairseq", stride=stride
    )
    assert result["num_tokens"] == len(ids)
    assert result["perplexity"] == close(2 ** (reference.mean(nlls.values()) / math.log(2)))


# --- run_clm.py -----------------------------------------------------------------------------------


def grouped(tokenizer, texts, block):
    """Its two maps over the texts: tokens of each, then blocks of every thousand texts."""
    datasets = pytest.importorskip("datasets")

    def group(examples):
        ids = [token for row in examples["input_ids"] for token in row]
        whole = len(ids) // block * block
        blocks = [ids[first : first + block] for first in range(0, whole, block)]
        return {
            "input_ids": blocks,
            "labels": blocks,
            "attention_mask": [[1] * block] * len(blocks),
        }

    texts = datasets.Dataset.from_dict({"text": texts})
    tokens = texts.map(lambda row: tokenizer(row["text"]), batched=True, remove_columns=["text"])
    return tokens.map(group, batched=True, remove_columns=tokens.column_names)


@pytest.mark.filterwarnings("ignore")
def test_run_clm_is_what_the_trainer_reports(metric, tmp_path):
    """More than a thousand texts, so that two remainders are thrown away."""
    pytest.importorskip("accelerate")
    tokenizer = make_tokenizer(adds_bos=True, model_max_length=8)
    model = make_model("llama")
    texts = [random_text(2 + number % 3, seed=number) for number in range(1003)]
    trainer = transformers.Trainer(
        model=model,
        args=transformers.TrainingArguments(
            output_dir=str(tmp_path), per_device_eval_batch_size=7, report_to=[], use_cpu=True
        ),
        eval_dataset=grouped(tokenizer, texts, 8),
        data_collator=transformers.default_data_collator,
    )
    expected = math.exp(trainer.evaluate()["eval_loss"])
    result = metric.compute(predictions=texts, model=model, tokenizer=tokenizer, protocol="run-clm")
    assert result["perplexity"] == close(expected)
    lengths = [len(encode(tokenizer, text, special=True)) for text in texts]
    windows = reference.run_clm(lengths, 8, 1000)
    assert result["num_windows"] == len(windows)
    assert result["num_tokens"] == sum(map(len, windows))
    together = (sum(lengths) // 8) * 7
    assert together > result["num_tokens"]  # had they not been thrown away


@pytest.mark.parametrize(
    "stated, limit, block",
    [
        (8, 16, 8),  # the tokenizer's own
        (10**30, 16, 16),  # it states none: 1024, or what the model takes
        (10**30, 1100, 1024),
        (1090, 1100, 1090),
        (1200, 1100, 1024),  # more than the model takes is none
    ],
)
def test_run_clm_blocks(metric, stated, limit, block):
    tokenizer = make_tokenizer(model_max_length=stated)
    model = make_model("llama", max_position_embeddings=limit)
    result = metric.compute(
        predictions=[random_text(2 * block + 1)],
        model=model,
        tokenizer=tokenizer,
        protocol="run-clm",
    )
    assert result["num_tokens"] == 2 * (block - 1)
    assert f"|window:{block}|" in result["signature"]
