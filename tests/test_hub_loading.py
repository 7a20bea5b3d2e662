"""Loading the metric: by its name on the Hub, from a clone, installed; always with its own package.

Everything goes through evaluate's real loader, with a server that plays the Hub, in processes that
have nothing of this repository on their path.
"""

import os
import pickle
import shutil
from pathlib import Path

import pytest
from fake_hub import FakeHub
from fresh import FreshPython

import perplexity_sliding
from perplexity_sliding import __version__ as VERSION
from perplexity_sliding.errors import ArgumentError
from perplexity_sliding.models.language_model import LanguageModel
from perplexity_sliding.results.totals import Totals

FACE = "perplexity_sliding.py"
# Says where the package of the metric comes from, and what it is marked with.
REPORT = """
import json, sys
import evaluate
from datasets import DownloadConfig

def load(*arguments, **keywords):
    try:
        metric = evaluate.load(*arguments, **keywords)
    except ImportError as error:
        return {"refused": str(error)}
    import perplexity_sliding, perplexity_sliding.errors as engine
    return {"package": perplexity_sliding.__path__[0], "mark": getattr(engine, "MARK", None)}
"""


@pytest.fixture(scope="module")
def hub():
    hub = FakeHub()
    yield hub
    hub.close()


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """The folder that all caches of the Hub and of evaluate lie in."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def python(hub, home):
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("HF_") and "proxy" not in name.lower() and name != "PYTHONPATH"
    }
    environment |= {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(home)}
    python = FreshPython(environment)
    yield python
    python.close()


@pytest.fixture(scope="module")
def files(root) -> dict[str, bytes]:
    """The Space's files: the metric, its package, and others that nobody needs to load it."""
    package = [path for path in (root / "perplexity_sliding").rglob("*.*") if path.suffix != ".pyc"]
    paths = [root / FACE, root / "app.py", root / "score.py", *package]
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in paths}


def marked(files: dict[str, bytes], mark: str, version: str = VERSION) -> dict[str, bytes]:
    """Other code: with a mark in the engine, and of another version."""
    changed = {
        FACE: files[FACE].replace(f'"{VERSION}"'.encode(), f'"{version}"'.encode()),
        "perplexity_sliding/__init__.py": files["perplexity_sliding/__init__.py"].replace(
            f'"{VERSION}"'.encode(), f'"{version}"'.encode()
        ),
        "perplexity_sliding/errors.py": files["perplexity_sliding/errors.py"]
        + f"\nMARK = {mark!r}\n".encode(),
    }
    return files | changed


def write(files: dict[str, bytes], folder: Path) -> Path:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


@pytest.fixture
def site(files, tmp_path) -> Path:
    """A folder of packages with this one as pip installs it."""
    package = write(files, tmp_path / "site") / "perplexity_sliding"
    (package.parent / FACE).rename(package / FACE)
    for program in ("app.py", "score.py"):
        (package.parent / program).unlink()
    return package.parent


# --- by name ---------------------------------------------------------------------------------------

COMPUTE = """
import json, multiprocessing, os, pickle, sys
from concurrent.futures import ProcessPoolExecutor
import evaluate

def add_up(error, totals):
    return sum([totals, totals]).result()["num_tokens"], error.wording.argument

if __name__ == "__main__":
    from models import make_tokenizer, make_uniform_model, random_text

    metric = evaluate.load("user/perplexity_sliding")
    given = {"model": make_uniform_model(), "tokenizer": make_tokenizer(), "return_totals": True}
    result = metric.compute(predictions=[random_text(50), random_text(7)], stride=4, **given)
    import perplexity_sliding
    again = perplexity_sliding.compute(predictions=[random_text(50)], stride=4, **given)
    try:
        metric.compute(predictions=["w5"], **given | {"stride": 0})
    except ValueError as refused:
        error = refused
    in_child = {}
    if not os.path.exists("totals.pickle"):  # once: it takes seconds
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            in_child["in a child"] = pool.submit(add_up, error, result["totals"]).result()
        with open("totals.pickle", "wb") as file:
            pickle.dump(result["totals"], file)
    print(json.dumps(in_child | {
        "perplexity": result["perplexity"],
        "num_tokens": result["num_tokens"],
        "module": type(metric).__module__,
        "package": perplexity_sliding.__path__[0],
        "added": (result["totals"] + again["totals"]).result()["num_tokens"],
    }))
"""


def test_by_name_the_package_is_fetched_once_and_serves_offline(
    python, hub, home, files, root, tmp_path
):
    commit = hub.add_space("user/perplexity_sliding", files)
    hub.asked.clear()
    first = python.run(COMPUTE, tmp_path, [root / "tests"]).json
    assert first["perplexity"] == pytest.approx(80, rel=1e-6)
    assert first["num_tokens"] == 57
    assert first["module"] == "perplexity_sliding.metric"
    assert Path(first["package"]).parent.name == commit
    assert Path(first["package"]).is_relative_to(home / "hub" / "spaces--user--perplexity_sliding")
    # totals add up with those of the package, and in a process that this one starts
    assert first["added"] == 57 + 50
    assert first.pop("in a child") == [2 * 57, "stride"]

    requested = {name.partition(f"{commit}/")[2] for name in hub.asked}
    package = {name for name in files if name.startswith("perplexity_sliding/")}
    assert package <= requested
    assert not requested & {"app.py", "score.py"}

    hub.asked.clear()
    later = python.run(COMPUTE, tmp_path, [root / "tests"]).json
    assert later == first
    assert 1 <= len(hub.asked) <= 6, hub.asked

    with hub.unreachable():
        assert python.run(COMPUTE, tmp_path, [root / "tests"]).json == first


def test_a_private_space_is_fetched_with_the_token(python, hub, files, tmp_path):
    name = "private/perplexity_sliding"
    commit = hub.add_space(name, files, token="secret")
    for token in ("wrong", "secret"):
        keywords = f"download_config=DownloadConfig(token={token!r})"
        source = f"{REPORT}\nprint(json.dumps(load({name!r}, {keywords})))"
        outcome = python.run(source, tmp_path)
        if token == "wrong":
            assert outcome.code == 1 and "FileNotFoundError" in outcome.err
    assert Path(outcome.json["package"]).parent.name == commit


def test_a_revision_is_loaded_with_its_own_package(python, hub, files, tmp_path):
    name = "releases/perplexity_sliding"
    old = hub.add_space(name, marked(files, "old", "0.1.9"), tag="release-0.1.9")
    new = hub.add_space(name, marked(files, "new"), tag=f"release-{VERSION}")

    def load(**keywords):
        keywords = ", ".join(f"{key}={value!r}" for key, value in keywords.items())
        return python.run(f"{REPORT}\nprint(json.dumps(load({name!r}, {keywords})))", tmp_path).json

    for revision, commit, mark in [
        ("release-0.1.9", old, "old"),
        (f"release-{VERSION}", new, "new"),
        (new, new, "new"),
        (None, new, "new"),
    ]:
        loaded = load(revision=revision)
        assert (Path(loaded["package"]).parent.name, loaded["mark"]) == (commit, mark), revision
    # Offline, evaluate takes the copy that it made last, whatever the revision.
    with hub.unreachable():
        new = load(revision=f"release-{VERSION}")
        assert new.get("mark") == "new", new
        refused = load(revision="release-0.1.9")["refused"]
        assert VERSION in refused and "version 0.1.9" in refused


def test_an_incomplete_package_is_refused(python, hub, files, tmp_path):
    hub.add_space("half/perplexity_sliding", {FACE: files[FACE]})
    source = f"{REPORT}\nprint(json.dumps(load('half/perplexity_sliding')))"
    refused = python.run(source, tmp_path).json["refused"]
    assert "half/perplexity_sliding" in refused and "complete package" in refused


# --- beside an installed package -------------------------------------------------------------------


def test_a_space_beside_an_installed_package(python, hub, files, site, tmp_path):
    """The installed one serves if it has the same version; another one is refused."""
    hub.add_space("beside/perplexity_sliding", files)
    source = f"{REPORT}\nprint(json.dumps(load('beside/perplexity_sliding')))"
    assert python.run(source, tmp_path, [site]).json["package"] == str(site / "perplexity_sliding")

    write(marked(files, "installed", "0.1.0"), site)
    refused = python.run(source, tmp_path, [site]).json["refused"]
    assert str(site / "perplexity_sliding") in refused and "version 0.1.0" in refused


def test_an_installed_package_of_another_version_is_refused(python, files, site, tmp_path):
    clone = write(files, tmp_path / "clone")
    shutil.rmtree(site / "perplexity_sliding")
    write(marked(files, "installed", "0.1.0"), site)
    source = f"{REPORT}\nprint(json.dumps(load({str(clone / FACE)!r})))"
    refused = python.run(source, tmp_path, [site]).json["refused"]
    assert f"has version {VERSION}" in refused
    assert f"{site / 'perplexity_sliding'} has version 0.1.0" in refused


def test_an_installed_package_is_loaded_from_any_folder(python, site, tmp_path):
    package = site / "perplexity_sliding"
    for path in (package, package / FACE):
        source = f"{REPORT}\nprint(json.dumps(load({str(path)!r})))"
        assert python.run(source, tmp_path, [site]).json["package"] == str(package)
    source = (
        "import json, perplexity_sliding as package; metric = package.load();"
        "totals = metric.totals_from_json.__self__;"
        "print(json.dumps([package.__file__, totals.__module__, sorted(metric.protocols)[0]]))"
    )
    place, module, protocol = python.run(source, tmp_path, [site]).json
    assert Path(place).parent == package
    assert (module, protocol) == ("perplexity_sliding.results.totals", "exllamav2")


# --- from a clone ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["./perplexity_sliding.py", "perplexity_sliding", "./perplexity_sliding/", "{}"]
)
def test_a_clone_is_loaded_with_its_package(python, files, tmp_path, path):
    """By a relative path in its folder, and by an absolute one from elsewhere."""
    clone = write(marked(files, "clone"), tmp_path / "clone")
    inside = not path.startswith("{")
    source = f"{REPORT}\nprint(json.dumps(load({path.format(clone / FACE)!r})))"
    loaded = python.run(source, clone if inside else tmp_path).json
    assert loaded == {"package": str(clone / "perplexity_sliding"), "mark": "clone"}


def test_a_clone_of_the_metrics_name_is_loaded_by_its_folder(python, files, tmp_path):
    """There the folder that Python would import is the whole clone, which is no package."""
    clone = write(files, tmp_path / "perplexity_sliding")
    source = f"{REPORT}\nprint(json.dumps(load('perplexity_sliding')))"
    loaded = python.run(source, tmp_path, [tmp_path]).json
    assert loaded["package"] == str(clone / "perplexity_sliding")


def test_another_module_of_its_name_is_refused(python, files, tmp_path):
    clone = write(files, tmp_path / "clone")
    script = write({"perplexity_sliding.py": b""}, tmp_path / "user")
    source = f"{REPORT}\nprint(json.dumps(load({str(clone / FACE)!r})))"
    refused = python.run(source, tmp_path, [script]).json["refused"]
    assert str(script / "perplexity_sliding.py") in refused


def test_a_metric_without_a_package_is_refused(python, files, tmp_path):
    write({FACE: files[FACE], "api.py": b"", "__init__.py": b""}, tmp_path)
    source = f"{REPORT}\nprint(json.dumps(load({str(tmp_path / FACE)!r})))"
    refused = python.run(source, tmp_path / "..").json["refused"]
    assert str(tmp_path / FACE) in refused and "install" in refused


# --- one copy of every class -----------------------------------------------------------------------


def test_the_loaded_metric_has_the_classes_of_the_package(loaded, gpt2, tokenizer, tmp_path):
    metric = type(loaded)(cache_dir=str(tmp_path))
    given = {"model": gpt2, "tokenizer": tokenizer, "return_totals": True}
    of_metric = metric.compute(predictions=["w5 w6 w7"], **given)["totals"]
    of_package = perplexity_sliding.compute(predictions=["w8 w9"], **given)["totals"]
    assert type(of_metric) is type(of_package) is Totals
    assert (of_metric + of_package).result()["num_tokens"] == 5
    assert type(pickle.loads(pickle.dumps(of_metric))) is Totals
    with pytest.raises(ArgumentError, match="stride"):
        metric.compute(predictions=["w5"], stride=0, **given)
    assert type(metric.open_model(model=gpt2, tokenizer=tokenizer)) is LanguageModel
