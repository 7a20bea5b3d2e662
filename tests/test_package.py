"""The package: what it is made of, and that it works however it is installed, offline."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from perplexity_sliding import __version__ as VERSION
from perplexity_sliding.cli import main as score
from space import publish

ROOT = Path(__file__).resolve().parent.parent
OFFLINE = {"HF_HUB_OFFLINE": "1", "PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def requirements(path: str) -> dict[str, Requirement]:
    """Read a file of requirements, by name in its normal form."""
    lines = [
        line.partition("#")[0].strip() for line in (ROOT / path).read_text("utf-8").splitlines()
    ]
    read = [Requirement(line) for line in lines if line]
    return {requirement.name.lower().replace("_", "-"): requirement for requirement in read}


# --- what is needed --------------------------------------------------------------------------------


def test_requirements_have_a_lower_bound_and_no_cap_below_the_next_major_version():
    for name, requirement in requirements("requirements.txt").items():
        bounds = {bound.operator: Version(bound.version) for bound in requirement.specifier}
        assert ">=" in bounds, name
        assert set(bounds) <= {">=", "<"}, name
        if "<" in bounds:
            assert bounds["<"].release == (bounds["<"].major,), name
            tested = Version(pinned(name))
            assert bounds["<"].major == tested.major + 1, name


def pinned(name: str) -> str:
    (pin,) = requirements("constraints.txt")[name].specifier
    assert pin.operator == "==", name
    return pin.version


def test_constraints_have_one_version_of_everything_that_is_needed():
    constraints = requirements("constraints.txt")
    for path in (
        "requirements.txt",
        "tests/requirements.txt",
        "perplexity_sliding/cli/compare.txt",
    ):
        for name, requirement in requirements(path).items():
            assert name in constraints, f"{name} of {path}"
            assert requirement.specifier.contains(pinned(name)), name
    # these come with transformers and change what is read
    assert {"tokenizers", "safetensors"} <= constraints.keys()


def test_the_page_is_tested_with_the_version_of_the_space():
    (version,) = re.findall(r"^sdk_version: (.+)$", (ROOT / "README.md").read_text("utf-8"), re.M)
    assert pinned("gradio") == version


def test_the_version_is_the_same_everywhere():
    assert publish.read_version(ROOT) == VERSION
    changes = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.M)
    assert changes[0] == VERSION
    assert changes == sorted(changes, key=Version, reverse=True)
    assert f"version = {{{VERSION}}}" in (ROOT / "README.md").read_text("utf-8")


# --- what is installed -----------------------------------------------------------------------------


# What the tests run where it is, as installing takes long: vLLM in a leg of its own, llama.cpp by hand.
ELSEWHERE = {"vllm", "llama_cpp", "gguf", "resource"}


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """A clone of what is published, with its git."""
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("published")
    for file in publish.list_files(ROOT):
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, folder / file)
    names = ["-c", "user.name=T", "-c", "user.email=t@example.com"]
    for command in (["init", "-q"], ["add", "-A"], [*names, "commit", "-qm", "All"]):
        subprocess.run(["git", *command], cwd=folder, check=True)
    return folder


@pytest.fixture(scope="module")
def wheel(source, tmp_path_factory) -> Path:
    """The wheel that comes of the sdist."""
    folder = tmp_path_factory.mktemp("wheel")
    run([sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", folder], cwd=source)
    (sdist,) = folder.glob("*.tar.gz")
    build = ["wheel", "--no-deps", "--no-build-isolation", "--quiet", "--wheel-dir", folder]
    run([sys.executable, "-m", "pip", *build, sdist], cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_holds_the_package_and_the_bundled_model_and_nothing_else(wheel):
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    package = [path for path in (ROOT / "perplexity_sliding").rglob("*.*") if path.suffix != ".pyc"]
    expected = {path.relative_to(ROOT).as_posix() for path in package}
    model = ["config.json", "generation_config.json", "model.safetensors"]
    model += ["tokenizer.json", "tokenizer_config.json"]
    beside = [f"demo_model/{name}" for name in model] + ["perplexity_sliding.py"]
    assert names == expected | {f"perplexity_sliding/{name}" for name in beside}
    assert "perplexity_sliding/py.typed" in names


def test_the_wheel_asks_for_the_requirements_as_they_are(wheel):
    archive = zipfile.ZipFile(wheel)
    (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
    lines = archive.read(name).decode().splitlines()
    needed = [line.partition(": ")[2] for line in lines if line.startswith("Requires-Dist: ")]
    needed = [Requirement(line) for line in needed if "extra ==" not in line]
    stated = requirements("requirements.txt").values()
    assert {(r.name, r.specifier) for r in needed} == {(r.name, r.specifier) for r in stated}
    extras = {line.partition(": ")[2] for line in lines if line.startswith("Provides-Extra: ")}
    assert extras == {"compare"}
    assert f"Version: {VERSION}" in lines


@pytest.fixture(scope="module")
def environment(tmp_path_factory) -> Path:
    """An environment with nothing but what the package depends on; its bin folder."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return folder / "bin"


def install(environment: Path, *what: object) -> None:
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--force-reinstall"]
    pip = [sys.executable, "-m", "pip", "--python", environment / "python"]
    run([*pip, "install", *options, *what], cwd="/")


def run(command: list, cwd: Path | str) -> str:
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env=os.environ | OFFLINE,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("how", ["folder", "editable", "git", "wheel"])
def test_it_works_however_it_is_installed(environment, source, wheel, how, tmp_path):
    what = {
        "folder": [source],
        "editable": ["-e", source],
        "git": [f"git+file://{source}"],
        "wheel": [wheel],
    }
    install(environment, *what[how])
    program = (
        "import perplexity_sliding as package; from perplexity_sliding.cli import options;"
        "print(package.__file__, package._metric_file(), options.BUNDLED_MODEL)"
    )
    place, metric, model = run([environment / "python", "-c", program], cwd=tmp_path).split()
    folder = source if how == "editable" else environment.parent
    assert Path(place).is_relative_to(folder)
    assert Path(metric).is_file() and Path(model, "model.safetensors").is_file()
    version = run([environment / "python", "-m", "perplexity_sliding", "--version"], cwd=tmp_path)
    assert version.split() == ["perplexity-sliding", VERSION]
    assert version == run([environment / "perplexity-sliding", "--version"], cwd=tmp_path)


def test_the_installed_command_scores_with_the_bundled_model(environment, wheel, tmp_path, capsys):
    install(environment, wheel)
    sample = ROOT / "samples" / "note.txt"
    command = run([environment / "perplexity-sliding", sample], cwd=tmp_path)
    assert re.search(r"^ppl\|sliding\|L128\|S64\|[0-9a-f]{12}$", command, re.M)
    assert score.main([str(sample)]) == 0
    assert capsys.readouterr().out == command, "as in a clone"
