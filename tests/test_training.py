"""Perplexity of held-out texts while a real Trainer trains: values, logs, and a model left alone."""

import inspect
import json
import os
import subprocess
import sys

import accelerate
import datasets
import pytest
import torch
import transformers
from models import make_model, make_tokenizer, random_text
from test_parts import CHAT, PLAIN_TEMPLATE

from perplexity_sliding import PerplexityCallback, compute

HELD_OUT = [random_text(40, seed=n) for n in range(12)]
TRAINED_ON = [random_text(16, seed=100 + n) for n in range(32)]


@pytest.fixture(autouse=True)
def a_run_of_its_own():
    """A process keeps its precision, which the next Trainer of transformers 4.45 would find."""
    yield
    os.environ.pop("ACCELERATE_MIXED_PRECISION", None)
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)


def examples(tokenizer) -> list[dict]:
    encoded = [tokenizer(text)["input_ids"] for text in TRAINED_ON]
    return [{"input_ids": ids, "labels": ids} for ids in encoded]


def make_trainer(folder, *callbacks, model=None, template=None, **settings):
    transformers.set_seed(0)
    tokenizer = make_tokenizer(chat_template=template)
    arguments = {
        "max_steps": 4,
        "eval_strategy": "steps",
        "eval_steps": 2,
        "learning_rate": 3e-3,
        "per_device_train_batch_size": 8,
        "report_to": [],
        "use_cpu": True,
        "save_strategy": "no",
        "disable_tqdm": True,
    } | settings
    known = inspect.signature(transformers.Trainer).parameters
    named = "processing_class" if "processing_class" in known else "tokenizer"  # before 4.46
    return transformers.Trainer(
        model=make_model("gpt2") if model is None else model,
        args=transformers.TrainingArguments(output_dir=str(folder), **arguments),
        train_dataset=examples(tokenizer),
        eval_dataset=examples(tokenizer)[:8],
        **{named: tokenizer},
        callbacks=list(callbacks),
    )


def logged(trainer, name: str) -> dict[int, float]:
    """By step, from what has reached the logs."""
    return {entry["step"]: entry[name] for entry in trainer.state.log_history if name in entry}


def test_every_evaluation_scores_the_live_model(tmp_path):
    trainer = make_trainer(tmp_path, PerplexityCallback(HELD_OUT, stride=4))
    trainer.train()
    perplexities = logged(trainer, "eval_perplexity")
    assert list(perplexities) == [2, 4]
    after = compute(HELD_OUT, model=trainer.model, tokenizer=make_tokenizer(), stride=4)
    assert perplexities[4] == pytest.approx(after["perplexity"], rel=1e-6)
    assert perplexities[2] != pytest.approx(perplexities[4], rel=1e-3)
    low, high = after["perplexity_interval"]
    assert logged(trainer, "eval_perplexity_low")[4] == pytest.approx(low, rel=1e-6)
    assert logged(trainer, "eval_perplexity_high")[4] == pytest.approx(high, rel=1e-6)
    assert logged(trainer, "eval_bits_per_byte")[4] == pytest.approx(after["bits_per_byte"])


def make_adapted():
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(
        task_type="CAUSAL_LM", r=4, target_modules=["c_attn"], fan_in_fan_out=True
    )
    return peft.get_peft_model(make_model("gpt2"), config)


@pytest.mark.parametrize(
    "make, settings",
    [
        (None, {}),
        (make_adapted, {}),
        (None, {"gradient_checkpointing": True}),
        (None, {"bf16": True}),
    ],
    ids=["plain", "LoRA", "gradient checkpointing", "bf16"],
)
def test_the_training_goes_on_as_without_it(tmp_path, make, settings):
    """The same weights in the end, in the same mode; nothing of random numbers is used up."""

    def train(*callbacks):
        trainer = make_trainer(tmp_path, *callbacks, model=make and make(), **settings)
        trainer.train()
        return trainer

    callback = PerplexityCallback(HELD_OUT)
    transformers.set_seed(0)
    plain = train()
    transformers.set_seed(0)
    watched = train(callback)
    for (name, weight), other in zip(
        watched.model.named_parameters(), plain.model.parameters(), strict=True
    ):
        assert torch.equal(weight, other), name
    assert watched.model.training == plain.model.training
    assert callback.results["num_tokens"] == 12 * 40


def test_the_run_s_precision_is_used(tmp_path):
    """In bfloat16 the number differs from float32 by rounding, and the signature says why."""
    callback = PerplexityCallback(HELD_OUT)
    trainer = make_trainer(tmp_path, callback, bf16=True)
    trainer.train()
    with torch.autocast("cpu", torch.bfloat16):
        half = compute(HELD_OUT, model=trainer.model, tokenizer=make_tokenizer())
    assert callback.results["perplexity"] == pytest.approx(half["perplexity"], rel=1e-6)
    assert "autocast(cpu,bfloat16)" in callback.results["signature"]


def perplexity_of(model) -> float:
    return compute(HELD_OUT, model=model, tokenizer=make_tokenizer())["perplexity"]


def test_the_best_model_is_scored_once_it_is_loaded(tmp_path):
    """The last step's model is the worst: its perplexity is not that of the model that is kept."""
    trainer = make_trainer(
        tmp_path,
        PerplexityCallback(HELD_OUT),
        max_steps=8,
        learning_rate=1.0,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=20,
        save_strategy="steps",
        save_steps=2,
        load_best_model_at_end=True,
    )
    trainer.train()
    of_last_step = logged(trainer, "eval_perplexity")[8]
    found = trainer.evaluate()["eval_perplexity"]
    assert found == pytest.approx(perplexity_of(trainer.model), rel=1e-6)
    assert found < 0.9 * of_last_step


@torch.no_grad()
def test_what_changes_between_two_evaluations_is_scored(tmp_path):
    """Weights in place, the Trainer's model, and the Trainer itself; the step is the same."""
    callback = PerplexityCallback(HELD_OUT)
    trainer = make_trainer(tmp_path, callback)
    before = trainer.evaluate()["eval_perplexity"]
    trainer.model.transformer.wte.weight.data.mul_(0.5)
    halved = trainer.evaluate()["eval_perplexity"]
    assert halved == pytest.approx(perplexity_of(trainer.model), rel=1e-6)
    trainer.model = make_model("gpt2", seed=1)
    replaced = trainer.evaluate()["eval_perplexity"]
    assert replaced == pytest.approx(perplexity_of(trainer.model), rel=1e-6)
    other = make_trainer(tmp_path, callback, model=make_model("gpt2", seed=2))
    of_other = other.evaluate()["eval_perplexity"]
    assert of_other == pytest.approx(perplexity_of(other.model), rel=1e-6)
    assert len({round(value, 3) for value in (before, halved, replaced, of_other)}) == 4


@torch.no_grad()
def test_several_data_sets_are_one_evaluation(tmp_path, monkeypatch):
    calls = []

    def counting(*args, **kwargs):
        calls.append(kwargs["model"])
        return compute(*args, **kwargs)

    monkeypatch.setattr(sys.modules[PerplexityCallback.__module__], "compute", counting)
    callbacks = [PerplexityCallback(HELD_OUT[:6]), PerplexityCallback(HELD_OUT[6:])]
    trainer = make_trainer(tmp_path, *callbacks)
    trainer.eval_dataset = {"one": trainer.eval_dataset, "two": trainer.eval_dataset}
    first = trainer.evaluate()
    assert len(calls) == len(callbacks)
    assert {"eval_one_loss", "eval_two_loss", "eval_perplexity"} <= first.keys()
    trainer.model.transformer.wte.weight.mul_(0.5)
    second = trainer.evaluate()
    assert len(calls) == 2 * len(callbacks)
    alone = compute(HELD_OUT[6:], model=trainer.model, tokenizer=make_tokenizer())
    assert second["eval_perplexity"] == pytest.approx(alone["perplexity"], rel=1e-6)
    assert second["eval_perplexity"] != pytest.approx(first["eval_perplexity"], rel=1e-3)


def test_the_answers_of_chats_are_scored(tmp_path):
    callback = PerplexityCallback([CHAT, CHAT[:2]])
    trainer = make_trainer(tmp_path, callback, template=PLAIN_TEMPLATE)
    trainer.evaluate()
    tokenizer = make_tokenizer(chat_template=PLAIN_TEMPLATE)
    expected = compute([CHAT, CHAT[:2]], model=make_model("gpt2"), tokenizer=tokenizer)
    assert callback.results["perplexity"] == pytest.approx(expected["perplexity"], rel=1e-6)


def test_trl_s_trainer_takes_it(tmp_path):
    trl = pytest.importorskip("trl")
    tokenizer = make_tokenizer()
    trainer = trl.SFTTrainer(
        model=make_model("gpt2"),
        args=trl.SFTConfig(
            output_dir=str(tmp_path),
            max_steps=1,
            eval_strategy="steps",
            eval_steps=1,
            report_to=[],
            use_cpu=True,
            bf16=False,
            save_strategy="no",
            disable_tqdm=True,
            max_length=16,
        ),
        train_dataset=datasets.Dataset.from_dict({"text": TRAINED_ON}),
        eval_dataset=datasets.Dataset.from_dict({"text": TRAINED_ON[:4]}),
        processing_class=tokenizer,
        callbacks=[PerplexityCallback(HELD_OUT, stride=4)],
    )
    trainer.train()
    after = compute(HELD_OUT, model=trainer.model, tokenizer=tokenizer, stride=4)
    assert logged(trainer, "eval_perplexity") == {1: pytest.approx(after["perplexity"], rel=1e-6)}


def test_settings_are_checked_before_the_training():
    with pytest.raises(TypeError, match=r"strid.*Did you mean `stride`"):
        PerplexityCallback(HELD_OUT, strid=4)
    with pytest.raises(TypeError, match=r"`model_id` must be left"):
        PerplexityCallback(HELD_OUT, model_id="x")


SCRIPT = """
import json, os, pathlib, sys
sys.path[:0] = [{root!r}, {root!r} + "/tests"]
from perplexity_sliding import PerplexityCallback, compute
from test_training import make_tokenizer, HELD_OUT, logged, make_trainer

callback = PerplexityCallback(HELD_OUT, stride=4)
trainer = make_trainer({folder!r}, callback, per_device_train_batch_size=4)
trainer.train()
alone = compute(HELD_OUT, model=trainer.model, tokenizer=make_tokenizer(), stride=4)
shared = callback.results
found = [shared["perplexity"], alone["perplexity"], logged(trainer, "eval_perplexity")]
pathlib.Path({folder!r}, os.environ["RANK"] + ".json").write_text(json.dumps(found))
"""


def test_two_processes_share_the_work(tmp_path, root):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(root=str(root), folder=str(tmp_path / "run")))
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    done = subprocess.run(
        [*command, str(script)], capture_output=True, text=True, timeout=300, cwd=root
    )
    assert done.returncode == 0, done.stderr[-3000:]
    # A file a process: lines that both print may run into each other.
    first, second = (json.loads((tmp_path / f"run/{rank}.json").read_text()) for rank in (0, 1))
    assert first == second
    shared, alone, history = first
    assert shared == pytest.approx(alone, rel=1e-6)
    assert list(history) == ["2", "4"] and history["4"] == shared
