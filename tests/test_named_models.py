"""Names of models: the page lets in only what can do no harm, and names that are none are told at once.

A server on this machine plays the Hub and offers every trick that is known.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from fake_hub import COMMIT, FakeHub
from models import make_byte_tokenizer, make_model, make_tokenizer, random_text, save
from space_models import byte_model, word_model

from space import gate
from space.jobs import Job
from space.limits import Limits, Refused
from space.models import BUNDLED
from space.service import Service
from space.settings import Settings

TEXT = "The quick brown fox jumps over the lazy dog. " * 4


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Folders of honest models, by kind."""
    base = tmp_path_factory.mktemp("models")
    return {
        "bytes": byte_model(base / "bytes"),
        "other": byte_model(base / "other", seed=5, context=32),
        "words": word_model(base / "words"),
    }


@pytest.fixture
def hub():
    hub = FakeHub()
    yield hub
    hub.close()


@pytest.fixture
def service(hub, folders):
    return Service(folders["bytes"], Limits(), hub.endpoint)


def copy(folder, **changes) -> dict[str, bytes]:
    """The files of a folder, with entries of config.json changed."""
    files = {path.name: path.read_bytes() for path in Path(folder).iterdir()}
    config = json.loads(files["config.json"]) | changes
    return files | {"config.json": json.dumps(config).encode()}


def load(service, name):
    return service.load(name, Job(60))


# Names that are none


@pytest.mark.parametrize(
    "name",
    [
        "",
        "gpt2",  # no owner; could be a folder
        "demo_model/../secrets",
        "owner/..",
        "/etc/passwd",
        "owner/na me",
        "owner/name\n",
        "https://example.com/model",
        "owner/name@main",
        "owner/a--b",  # the cache's own separator
        "öwner/name",
        "owner/" + "n" * 200,
        "<b>owner</b>/name",
    ],
)
def test_only_names_of_models_reach_the_hub(service, hub, name):
    with pytest.raises(Refused, match="not the name of a model"):
        gate.admit(name, Limits(), hub.endpoint)
    assert hub.asked == []


def test_a_folder_of_this_machine_is_no_model(hub, folders, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    word_model(tmp_path / "owner" / "name")
    with pytest.raises(Refused, match="owner/name cannot be used here"):
        gate.admit("owner/name", Limits(), hub.endpoint)
    assert hub.asked == []


# Descriptions that tell enough


def files(sizes: dict[str, int]) -> dict:
    return {"siblings": [{"rfilename": name, "size": size} for name, size in sizes.items()]}


DESCRIPTIONS = [
    ({"gated": "manual"}, "gated"),
    ({"disabled": True}, "not open to the public"),
    ({"tags": ["custom_code"]}, "program code of its own"),
    (
        {"config": {"architectures": ["XForCausalLM"], "auto_map": {"AutoModel": "x.X"}}},
        "program code of its own",
    ),
    ({"config": {"architectures": ["BertModel"]}}, "architecture is BertModel"),
    ({"config": {"architectures": ["T5ForConditionalGeneration"]}}, "does not|not a model that"),
    ({"config": {"architectures": ["GPT2LMHeadModel", "Evil"]}}, "not a model that predicts"),
    ({"config": {}}, "architecture is unknown"),
    ({"sha": "main"}, "does not report the revision"),
    (files({"pytorch_model.bin": 9}), "safetensors format"),
    ({"siblings": [{"rfilename": "model.safetensors"}]}, "does not say how large"),
    (files({"model.safetensors": 10**11}), "too large.*100.0 GB"),
    (
        files({f"model-0000{n}-of-00003.safetensors": 6 * 10**8 for n in (1, 2, 3)}),
        "too large.*1.8 GB",
    ),
    (files({"model.safetensors": 9, "tokenizer.json": 10**9}), "too large"),
    (files({"model.safetensors": 9, "adapter_config.json": 9}), "is an adapter"),
]


@pytest.mark.parametrize("description, reason", DESCRIPTIONS)
def test_a_bad_description_is_refused_before_any_download(
    hub, folders, service, description, reason
):
    name = hub.add("owner/model", folders["words"], **description)
    with pytest.raises(Refused, match=reason) as refusal:
        load(service, name)
    assert hub.asked == ["/api/models/owner/model"]
    assert str(refusal.value).endswith(".")  # a sentence


def test_a_model_that_is_not_there(service):
    with pytest.raises(Refused, match="no public model called owner/model"):
        load(service, "owner/model")


def test_a_hub_out_of_reach(folders):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(Refused, match=r"could not be reached.*bundled"):
        load(Service(folders["bytes"], Limits(), endpoint), "owner/model")


# Files that are not what the description promises


def test_only_data_of_the_checked_commit_is_downloaded(hub, folders, service):
    extra = {
        "modeling.py": b"raise SystemExit",
        "pytorch_model.bin": b"pickle",
        "tokenizer.py": b"raise SystemExit",
        "chat_template.jinja": b"{{ 1 }}",
        "model.safetensors.py": b"raise SystemExit",
    }
    load(service, hub.add("owner/model", copy(folders["words"]) | extra))
    fetched = {path for path in hub.asked if not path.startswith("/api/")}
    assert {path.rsplit("/", 1)[0] for path in fetched} == {f"/owner/model/resolve/{COMMIT}"}
    names = {path.rsplit("/", 1)[1] for path in fetched}
    assert names == {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}


def test_more_layers_than_weights(hub, folders, service):
    name = hub.add("owner/model", copy(folders["words"], n_layer=3))
    with pytest.raises(
        Refused,
        match=r"owner/model cannot be used.*must have all weights of its architecture",
    ):
        load(service, name)


def test_a_configuration_that_names_a_kernel(hub, folders, service):
    name = hub.add("owner/model", copy(folders["words"], attn_implementation="someone/kernel"))
    loaded = load(service, name)
    assert loaded.model.config._attn_implementation == "sdpa"
    assert not any("kernel" in path for path in hub.asked)


def test_a_tokenizer_of_another_model(hub, folders, service, tmp_path):
    folder = save(tmp_path / "mixed", make_model("gpt2"), make_byte_tokenizer())
    with pytest.raises(Refused, match=r"owner/model cannot be used.*belongs to another model"):
        load(service, hub.add("owner/model", folder))


@pytest.mark.parametrize("file", ["config.json", "model.safetensors", "tokenizer.json"])
def test_broken_files(hub, folders, service, file):
    said = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"}
    files = copy(folders["words"]) | {file: b"\x00broken"}
    name = hub.add("owner/model", files, config=said)
    with pytest.raises(Refused, match="owner/model cannot be used here"):
        load(service, name)


def test_code_in_the_configuration_is_not_run(hub, folders, service, tmp_path):
    """The description hides what config.json says; without the code it is an ordinary GPT-2."""
    mark = tmp_path / "ran"
    files = copy(folders["words"], auto_map={"AutoModelForCausalLM": "evil.Evil"})
    files["evil.py"] = f"open({str(mark)!r}, 'w')".encode()
    name = hub.add("owner/model", files)
    with contextlib.suppress(Refused):
        load(service, name)
    assert not mark.exists()
    assert not any(path.endswith("evil.py") for path in hub.asked)


# Models that may come in


@pytest.mark.parametrize("name", ["gpt2", "llama", "opt", "gemma2", "bloom", "mamba", "cohere"])
def test_honest_models_of_every_kind_come_in(hub, service, tmp_path, name):
    folder = save(tmp_path / name, make_model(name), make_tokenizer())
    loaded = load(service, hub.add("owner/model", folder))
    assert loaded.commit == COMMIT
    assert 2 <= loaded.window <= Limits().window


def test_a_named_model_gives_the_number_of_its_files(hub, folders, service, metric):
    name = hub.add("owner/model", folders["other"])
    scored = service.score(TEXT, Settings(name, 32, 8), Job(60))
    expected = metric.compute(
        predictions=[TEXT], model_id=folders["other"], max_length=32, stride=8
    )
    assert scored.result["perplexity"] == pytest.approx(expected["perplexity"], rel=1e-6)
    assert "model:owner/model|" in scored.result["signature"]


def test_at_most_two_models_stay_in_memory(hub, folders, service):
    names = [hub.add(f"owner/model-{number}", folders["other"]) for number in range(3)]
    load(service, names[0])
    load(service, names[1])
    load(service, names[0])  # used again, so the other one goes first
    load(service, names[2])
    assert service.shelf.names == [names[0], names[2]]
    load(service, BUNDLED)
    assert service.shelf.names == [names[2], BUNDLED]


# Names that are nowhere


@pytest.fixture
def reached(monkeypatch):
    """A Hub that plays the real one."""
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


def test_a_name_that_is_nowhere_is_told_after_one_question(metric, reached):
    with pytest.raises(
        ValueError, match=r"does not exist: it is not a local folder, not on the Hub, or private\.$"
    ):
        metric.compute(predictions=["a"], model_id="me/nothing-like-it")
    assert asked_of_models(reached) == ["/api/models/me/nothing-like-it"]


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


@pytest.mark.parametrize("door", [["score.py"], ["-m", "perplexity_sliding"]])
def test_what_cannot_be_imported_is_no_limit_that_was_passed(root, tmp_path, door):
    """As on a machine where nothing has been installed yet: not 1, which is --fail-above's."""
    (tmp_path / "wcwidth.py").write_text("raise ModuleNotFoundError(name='wcwidth')")
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    ran = subprocess.run(
        [sys.executable, *door], cwd=root, env=environment, capture_output=True, text=True
    )
    assert ran.returncode == 3
    assert ran.stderr == "score.py: error: the package wcwidth is missing: pip install wcwidth.\n"


def test_a_message_that_cannot_be_printed_is_no_limit_that_was_passed(root):
    with open("/dev/full", "w") as full:
        ran = subprocess.run([sys.executable, "score.py", "nowhere.txt"], cwd=root, stderr=full)
    assert ran.returncode not in (0, 1)
