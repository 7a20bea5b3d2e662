"""Names of models that are none: told at once, with what was probably meant."""

import os
import subprocess
import sys

import pytest
from fake_hub import FakeHub
from models import make_model, make_tokenizer, random_text, save

from perplexity_sliding.models.loading import check_exists


@pytest.fixture
def hub(monkeypatch, tmp_path):
    hub = FakeHub()
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.endpoint)
    monkeypatch.setattr(
        "huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE",
        hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}",
    )
    monkeypatch.setattr("huggingface_hub.HfApi", lambda: hub.api)
    import huggingface_hub.hf_api

    hub.api = huggingface_hub.hf_api.HfApi(endpoint=hub.endpoint)
    yield hub
    hub.close()


@pytest.fixture
def nobody(monkeypatch):
    """A Hub that cannot be reached."""
    import huggingface_hub.hf_api

    api = huggingface_hub.hf_api.HfApi(endpoint="http://127.0.0.1:9")
    monkeypatch.setattr("huggingface_hub.HfApi", lambda: api)


def asked_of_models(hub) -> list[str]:
    return [path for path in hub.asked if "/api/models/" in path]


def test_a_name_that_is_nowhere_is_told_after_one_question(metric, hub):
    with pytest.raises(
        ValueError, match=r"does not exist: it is not a local folder, not on the Hub, or private\.$"
    ):
        metric.compute(predictions=["a"], model_id="me/nothing-like-it")
    assert asked_of_models(hub) == ["/api/models/me/nothing-like-it"]


def test_a_folder_with_nearly_this_name_is_suggested(metric, nobody, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "demo_model", make_model("gpt2"), make_tokenizer())
    with pytest.raises(
        ValueError, match=r"check the name and the network\. Did you mean demo_model\?"
    ) as e:
        metric.compute(predictions=["a"], model_id="demo-model")
    assert "could not be loaded" not in str(e.value)
    result = metric.compute(predictions=[random_text(9)], model_id="demo_model")
    assert result["num_tokens"] == 9


def test_what_was_downloaded_before_needs_no_hub(nobody, monkeypatch):
    monkeypatch.setattr(
        "huggingface_hub.try_to_load_from_cache",
        lambda name, file, **place: "/cache/config.json" if file == "config.json" else None,
    )
    check_exists("me/model", {}, "model_id")


def test_a_model_on_the_hub_is_found(hub, tiny):
    hub.add("me/model", tiny)
    check_exists("me/model", {}, "model_id")
    assert asked_of_models(hub) == ["/api/models/me/model"]


def test_the_command_line_says_it_in_a_line(call, nobody, tmp_path):
    (tmp_path / "a.txt").write_text(random_text(9))
    ran = call(tmp_path / "a.txt", model="nowhere-at-all")
    assert ran.code == 2 and len(ran.err.splitlines()) <= 2
    assert "was never downloaded, and the Hub is not reachable" in ran.err


def test_the_name_of_a_file_in_the_place_of_a_text_is_warned_of(metric, tmp_path, gpt2, tokenizer):
    path = tmp_path / "story.txt"
    path.write_text("w5 w6")
    with pytest.warns(
        UserWarning, match=r"name of a file at position 1 .*story\.txt'\)\.read_text"
    ):
        metric.compute(predictions=["w5 w6.", str(path)], model=gpt2, tokenizer=tokenizer)


def test_an_address_is_no_file(call):
    ran = call("https://example.org/story.txt")
    assert ran.code == 2 and "must be a local file, got the address" in ran.err


def test_a_missing_package_is_told_in_a_line(call, tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text(random_text(9))
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    ran = call(tmp_path / "a.txt")
    assert ran.code == 2
    assert (
        "the package huggingface_hub is missing: pip install huggingface_hub."
        in ran.err.splitlines()[-1]
    )


@pytest.mark.parametrize("door", [["score.py"], ["-m", "perplexity_sliding"]])
@pytest.mark.parametrize(
    ("source", "last"),
    [
        (
            "raise ModuleNotFoundError(name='wcwidth')",
            "error: the package wcwidth is missing: pip install wcwidth",
        ),
        ("raise OSError('a broken library')", "OSError: a broken library"),
    ],
)
def test_what_cannot_be_imported_is_no_limit_that_was_passed(root, tmp_path, door, source, last):
    """As on a machine where nothing has been installed yet: not 1, which is --fail-above's."""
    (tmp_path / "wcwidth.py").write_text(source)
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    ran = subprocess.run(
        [sys.executable, *door], cwd=root, env=environment, capture_output=True, text=True
    )
    lines = ran.stderr.splitlines()
    assert ran.returncode == 3 and lines[-1] == last
    assert len(lines) == 1 or "OSError" in source


def test_a_message_that_cannot_be_printed_is_no_limit_that_was_passed(root):
    with open("/dev/full", "w") as full:
        ran = subprocess.run([sys.executable, "score.py", "nowhere.txt"], cwd=root, stderr=full)
    assert ran.returncode not in (0, 1)
