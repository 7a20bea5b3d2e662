"""A stored result comes out again, or it is said what does not."""

import json

import pytest
from models import make_model, make_tokenizer, random_text, save
from perplexity_sliding.protocols import PROTOCOLS


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(random_text(40))
    return path


@pytest.fixture
def stored(call, text, tmp_path):
    """A result at settings that are not the default ones."""
    path = tmp_path / "result.json"
    call(text, "--format=json", "--max-length=12", "--stride=5", f"--output={path}")
    return path


def test_a_result_comes_out_again(call, stored, text):
    """With the window and the stride that it was measured at."""
    outcome = call("--verify", stored, text)
    assert outcome.code == 0
    assert [line.split()[-1] for line in outcome.out.splitlines()] == [*["same"] * 6, "verified"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_result_of_each_protocol_comes_out_again(call, stored, protocol, tmp_path):
    """Settings that a protocol does not let one choose were taken for chosen ones, and refused."""
    texts = [tmp_path / f"{number}.txt" for number in range(30)]
    for number, path in enumerate(texts):
        path.write_text(random_text(40, seed=number))
    assert call(*texts, "--format=json", f"--protocol={protocol}", f"--output={stored}").code == 0
    outcome = call("--verify", stored, *texts)
    assert outcome.out.endswith("\nverified\n"), outcome.err


def edited(path, **changes):
    written = json.loads(path.read_text())
    written["corpus"] |= changes
    path.write_text(json.dumps(written))
    return path


def changed_lines(outcome):
    assert outcome.code == 1
    *lines, verdict = outcome.out.splitlines()
    assert verdict == "not verified"
    return [line.split("  ")[0] for line in lines if "differs" in line]


def test_another_text(call, stored, text):
    text.write_text(random_text(40, seed=1))
    assert changed_lines(call("--verify", stored, text)) == [
        "texts_digest",
        "mean nll",
        "perplexity",
    ]


def test_another_model(call, stored, text, tmp_path):
    other = save(tmp_path / "tiny", make_model("gpt2", seed=5), make_tokenizer())
    outcome = call("--verify", stored, text, model=other)
    assert changed_lines(outcome) == ["signature", "probe", "mean nll", "perplexity"]


def test_code_that_no_signature_shows(call, stored, text, monkeypatch):
    import torch

    plain = torch.layer_norm
    monkeypatch.setattr(torch, "layer_norm", lambda *args, **kwargs: 1.01 * plain(*args, **kwargs))
    assert changed_lines(call("--verify", stored, text)) == ["probe", "mean nll", "perplexity"]


def test_a_number_that_was_edited(call, stored, text):
    changed = edited(stored, total_nll=json.loads(stored.read_text())["corpus"]["total_nll"] + 0.1)
    outcome = call("--verify", changed, text)
    assert changed_lines(outcome) == ["mean nll"]
    assert "nats a token" in outcome.out


@pytest.mark.parametrize("number", [19.5, -1.0, None])
def test_a_perplexity_that_was_edited(call, stored, text, number):
    """It was not compared, and the rest was said to be verified."""
    assert changed_lines(call("--verify", edited(stored, perplexity=number), text)) == [
        "perplexity"
    ]


@pytest.mark.parametrize("name", ["perplexity", "probe", "num_tokens"])
def test_what_is_no_number(call, stored, text, name):
    outcome = call("--verify", edited(stored, **{name: "much"}), text)
    assert outcome.code == 2
    assert f"must hold a number as {name}, got 'much'." in outcome.err


def test_what_is_no_name(call, stored, text):
    outcome = call("--verify", edited(stored, protocol=["sliding"]), text)
    assert outcome.code == 2
    assert "must hold a text as protocol, got ['sliding']." in outcome.err


@pytest.mark.parametrize("content", ["{", "[1]", '{"corpus": {"perplexity": 3}}'])
def test_what_is_no_result(call, stored, text, content):
    stored.write_text(content)
    outcome = call("--verify", stored, text)
    assert outcome.code == 2
    assert "--verify=" in outcome.err
