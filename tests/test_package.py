"""The package: a wheel that works in an environment of its own, offline, and what it is made of."""

import os
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from perplexity_sliding.cli import main as score

ROOT = Path(__file__).resolve().parent.parent
OFFLINE = {"HF_HUB_OFFLINE": "1", "PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def requirements(path: str) -> set[str]:
    lines = (ROOT / path).read_text("utf-8").splitlines()
    return {line for line in lines if line and not line.startswith("#")}


def test_the_space_extra_is_what_the_space_runs_on():
    (version,) = re.findall(r"^sdk_version: (.+)$", (ROOT / "README.md").read_text("utf-8"), re.M)
    assert requirements("space/requirements.txt") == {f"gradio=={version}"}


# What the tests run where it is, as installing takes long: vLLM in a leg of its own, llama.cpp by hand.
ELSEWHERE = {"vllm", "llama_cpp", "gguf"}


def test_what_a_test_skips_without_is_installed_for_the_tests():
    """A package that is named by `importorskip` or `find_spec` alone is never run."""
    call = re.compile(r"(?:importorskip|find_spec)\(\s*[\"']([\w.]+)")
    sources = "".join(path.read_text("utf-8") for path in (ROOT / "tests").glob("test_*.py"))
    asked = {name.partition(".")[0] for name in call.findall(sources)}
    files = ("requirements.txt", "tests/requirements.txt", "tests/oldest.txt")
    lines = set().union(*map(requirements, files))
    installed = {re.match(r"[\w-]+", line)[0].replace("-", "_") for line in lines}
    assert asked - ELSEWHERE - {"pyarrow"} <= installed  # pyarrow comes with datasets
    assert {"ray", "trl", "minicons", "wordsprobability"} <= asked


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"]
    done = subprocess.run(
        [*command, "--quiet", "--wheel-dir", str(folder), str(ROOT)],
        capture_output=True,
        text=True,
        env=os.environ | OFFLINE,
    )
    assert done.returncode == 0, done.stderr
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_holds_the_metric_and_the_command_line_and_nothing_else(wheel):
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    flat = {path.name for path in ROOT.glob("*.py")} - {"app.py", "score.py"}
    flat |= {path.relative_to(ROOT).as_posix() for path in (ROOT / "cli").glob("*.py")}
    flat |= {path.relative_to(ROOT).as_posix() for path in (ROOT / "views").glob("*.*")}
    model = ["config.json", "generation_config.json", "model.safetensors"]
    flat |= {f"demo_model/{name}" for name in [*model, "tokenizer.json", "tokenizer_config.json"]}
    flat |= {"__init__.py", "__main__.py"}
    assert names == {f"perplexity_sliding/{name}" for name in flat}


def test_the_wheel_asks_for_the_requirements_and_has_the_extras(wheel):
    archive = zipfile.ZipFile(wheel)
    (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
    lines = archive.read(name).decode().splitlines()
    needed = [line.partition(": ")[2] for line in lines if line.startswith("Requires-Dist: ")]
    packages = {re.match(r"[\w-]+", line)[0] for line in needed if "extra ==" not in line}
    assert packages == {re.match(r"[\w-]+", line)[0] for line in requirements("requirements.txt")}
    extras = {line.partition(": ")[2] for line in lines if line.startswith("Provides-Extra: ")}
    assert extras == {"compare", "space", "test"}


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """An environment with the wheel and, beside it, only what it depends on; its bin folder."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder)
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python")]
    subprocess.run(
        [*pip, "install", "--quiet", "--no-deps", str(wheel)],
        check=True,
        env=os.environ | OFFLINE,
    )
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return folder / "bin"


def run(command: list, cwd: Path) -> str:
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env=os.environ | OFFLINE,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_installed_command_scores_with_the_bundled_model(installed, tmp_path, capsys):
    sample = ROOT / "samples" / "note.txt"
    command = run([installed / "perplexity-sliding", sample], cwd=tmp_path)
    assert re.search(r"^ppl\|sliding\|L128\|S64\|[0-9a-f]{12}$", command, re.M)
    assert score.main([str(sample)]) == 0
    assert capsys.readouterr().out == command, "as in a clone"
    module = run([installed / "python", "-m", "perplexity_sliding", "--version"], cwd=tmp_path)
    assert module == run([installed / "perplexity-sliding", "--version"], cwd=tmp_path)


def test_the_installed_metric_is_loaded_from_python(installed, tmp_path):
    source = (
        "import perplexity_sliding as package; metric = package.load(); "
        "print(package.__file__, sorted(metric.protocols)[0])"
    )
    place, protocol = run([installed / "python", "-c", source], cwd=tmp_path).split()
    assert Path(place).is_relative_to(installed.parent)
    assert protocol == "exllamav2"


def test_the_module_is_found_in_a_clone_too():
    """There the folder of this name stands before the module of this name."""
    version = run([sys.executable, "-m", "perplexity_sliding", "--version"], cwd=ROOT)
    assert version.startswith("perplexity-sliding ")
    assert version.split()[1] in (ROOT / "about.py").read_text("utf-8")
