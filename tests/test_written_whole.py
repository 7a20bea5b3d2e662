"""Files are written whole or not at all, and never over what the run reads."""

import os
import shutil
import stat
import threading
from pathlib import Path

import pytest
from models import make_model, make_tokenizer, random_text, save

from perplexity_sliding.views import replacing
from perplexity_sliding.views.show import Shown

resource = pytest.importorskip("resource")
FORMER = "the former result"


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text(random_text(120), "utf-8")
    return tmp_path


@pytest.fixture
def small_disk():
    """No file may grow past 2,000 bytes."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize(
    "argv",
    [
        *(["--tokens", f"--output=r.{e}"] for e in ("csv", "parquet", "json", "txt", "tex")),
        ["--html=r.html"],
        ["--stride=4,8", "--plot=r.png"],
    ],
    ids=lambda argv: argv[-1],
)
def test_a_full_disk_costs_no_former_result(call, argv, small_disk):
    """A stub stood in its place, and nobody knew which file it was."""
    path = Path(argv[-1].partition("=")[2])
    path.write_text(FORMER)
    outcome = call("a.txt", "--quiet", *argv)
    assert outcome.code == 2
    assert f"error: {path}: " in outcome.err and "too large" in outcome.err
    assert path.read_text() == FORMER
    assert sorted(os.listdir()) == ["a.txt", path.name]


def test_a_full_disk_costs_no_former_view(small_disk):
    Path("r.html").write_text(FORMER)
    with pytest.raises(OSError, match="too large"):
        Shown("<p>" * 1000).save(Path("r.html"))
    assert Path("r.html").read_text() == FORMER
    assert sorted(os.listdir()) == ["a.txt", "r.html"]


def test_one_file_that_fails_costs_no_other(call, small_disk):
    outcome = call("a.txt", "--output=scores.csv", "--html=r.html")
    assert outcome.code == 2
    assert "perplexity" in Path("scores.csv").read_text()
    assert "wrote scores.csv" in outcome.err and "error: r.html: " in outcome.err
    assert not Path("r.html").exists()


def test_a_fault_in_one_format_costs_no_other_file(call, monkeypatch):
    """As of a library that writes it."""

    def broken(*_):
        raise NotImplementedError("no such type")

    monkeypatch.setattr("perplexity_sliding.cli.formats.write_parquet", broken)
    outcome = call("a.txt", "--output=r.parquet", "--html=r.html")
    assert outcome.code == 3 and "no such type" in outcome.err
    assert "<html" in Path("r.html").read_text() and "wrote r.html" in outcome.err


def test_a_run_that_is_ended_while_it_writes(place):
    Path("r.csv").write_text(FORMER)
    with pytest.raises(KeyboardInterrupt), replacing.replaced("r.csv") as where:
        Path(where).write_text("half")
        raise KeyboardInterrupt
    assert Path("r.csv").read_text() == FORMER
    assert sorted(os.listdir()) == ["a.txt", "r.csv"]


@pytest.mark.parametrize("former, mode", [(0o640, 0o640), (None, 0o666 & ~0o027)])
def test_the_mode_of_a_file_is_kept(call, former, mode):
    if former:
        Path("r.csv").touch()
        os.chmod("r.csv", former)
    mask = os.umask(0o027)
    try:
        call("a.txt", "--output=r.csv")
    finally:
        os.umask(mask)
    assert stat.S_IMODE(os.stat("r.csv").st_mode) == mode


# ---- what is no plain file: only in the test's own folder


def read_later(path):
    """Read a named pipe in a thread; return what waits for its end and returns what was read."""
    found = []
    thread = threading.Thread(target=lambda: found.append(Path(path).read_text()), daemon=True)
    thread.start()

    def read() -> str:
        thread.join(60)
        return found[0]

    return read


@pytest.mark.parametrize("name", ["pipe", "link"])
def test_a_pipe_is_written_and_stays(call, name):
    os.mkfifo("pipe")
    os.symlink("pipe", "link")
    read = read_later("pipe")
    assert call("a.txt", f"--output={name}", "--format=csv").code == 0
    assert stat.S_ISFIFO(os.stat("pipe").st_mode) and os.path.islink("link")
    assert read().startswith("name,")
    assert sorted(os.listdir()) == ["a.txt", "link", "pipe"]


def test_a_link_stays_and_its_file_is_replaced(call, place):
    Path("folder").mkdir()
    Path("folder/r.csv").write_text(FORMER)
    os.symlink("folder/r.csv", "link.csv")
    call("a.txt", "--output=link.csv")
    assert os.path.islink("link.csv")
    assert Path("folder/r.csv").read_text().startswith("name,")
    assert os.listdir("folder") == ["r.csv"]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs Linux's /proc")
def test_a_stream_that_somebody_has_open_is_not_replaced(call, place):
    """As /dev/stdout is, redirected to a file: what follows there would be lost."""
    with open("r.csv", "w+") as file:
        os.symlink(f"/proc/self/fd/{file.fileno()}", "link.csv")
        assert call("a.txt", "--output=link.csv").code == 0
        file.seek(0)
        assert file.read().startswith("name,")
    assert os.path.islink("link.csv")


def test_a_file_that_cannot_be_replaced_is_written(monkeypatch):
    """A file that is a mount by itself, as in a container."""

    def busy(*_):
        raise OSError(16, "Device or resource busy")

    monkeypatch.setattr(os, "replace", busy)
    Path("r.csv").write_text(FORMER)
    with replacing.replaced("r.csv") as where:
        Path(where).write_text("new")
    assert Path("r.csv").read_text() == "new"
    assert sorted(os.listdir()) == ["a.txt", "r.csv"]


# ---- what the run reads


@pytest.fixture
def other(tmp_path):
    return save(tmp_path / "other", make_model("gpt2", seed=5), make_tokenizer())


def refused(outcome, path) -> bool:
    return (
        outcome.code == 2 and f"must not be in the folder of a model, got '{path}'" in outcome.err
    )


WRITTEN = ["--output", "--html", "--checkpoint", "--reference-states"]


@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer.json", "added_tokens.json", "vocab.txt"]
)
def test_a_model_is_not_overwritten(call, folder, name):
    """Nor given a file that its loaders would take for its own."""
    before = {path.name: path.read_bytes() for path in Path(folder).iterdir()}
    outcome = call("a.txt", f"--output={folder}/{name}", model=folder)
    assert refused(outcome, f"{folder}/{name}")
    os.symlink(f"{folder}/{name}", "link.csv")
    assert refused(call("a.txt", "--output=link.csv", model=folder), "link.csv")
    assert {path.name: path.read_bytes() for path in Path(folder).iterdir()} == before
    assert call("a.txt", f"--output={folder}/scores.csv", model=folder).code == 0


@pytest.mark.parametrize("option", ["--reference", "--tokenizer", "--evaluator"])
@pytest.mark.parametrize("written", ["--output", "--checkpoint", "--reference-states"])
def test_nor_is_what_stands_beside_it(call, other, option, written):
    config = Path(other, "config.json")
    before = config.read_bytes()
    argv = [f"{option}={other}", f"{written}={config}", "--format=json"]
    argv += ["--key-tokens=longppl"] if option == "--evaluator" else []
    argv += [f"--reference={other}"] if written == "--reference-states" else []
    assert refused(call("a.txt", *argv), config)
    assert config.read_bytes() == before


def test_nor_is_the_model_under_an_adapter(call, other, tmp_path):
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(f'{{"base_model_name_or_path": "{other}"}}')
    pytest.importorskip("peft")
    for path in (f"{other}/config.json", f"{adapter}/adapter_config.json"):
        assert refused(call("a.txt", f"--output={path}", model=str(adapter)), path)


def test_nor_is_what_a_model_is_linked_to(call, folder, tmp_path):
    """As in the cache of the Hub, where a model's files are links to others."""
    cache = tmp_path / "models--org--name" / "blobs"
    cache.mkdir(parents=True)
    for path in Path(folder).iterdir():
        shutil.move(path, cache / path.name)
        os.symlink(cache / path.name, path)
    blob = cache / "config.json"
    assert refused(call("a.txt", f"--output={blob}", model=folder), blob)
    assert refused(
        call("a.txt", f"--output={blob}"), blob
    )  # of a model that this run does not read
    assert refused(
        call("a.txt", f"--output={folder}/config.json", model=folder), f"{folder}/config.json"
    )


@pytest.mark.parametrize("option", WRITTEN)
def test_a_text_is_not_overwritten(call, other, option):
    name = "a.html"
    Path(name).write_text(random_text(30))
    other = [f"--reference={other}"] if option == "--reference-states" else []
    outcome = call(name, f"{option}={name}", "--format=json", *other)
    assert outcome.code == 2 and f"{option} must not be one of the texts" in outcome.err
    assert Path(name).read_text() == random_text(30)


def test_a_dataset_on_the_disk_is_not_overwritten(call):
    Path("data").mkdir()
    Path("data/t.jsonl").write_text('{"text": "w5 w6"}\n')
    for name in ("data", "data/t.jsonl"):
        outcome = call(f"--dataset={name}:default:train:text", "--output=data/t.jsonl")
        assert outcome.code == 2 and "--output must not be one of the texts" in outcome.err
    assert Path("data/t.jsonl").read_text() == '{"text": "w5 w6"}\n'


def test_a_picture_is_not_drawn_over_a_text(call):
    Path("a.svg").write_text(random_text(30))
    outcome = call("a.svg", "--stride=4,8", "--plot=a.svg")
    assert outcome.code == 2 and "--plot must not be one of the texts" in outcome.err
    assert Path("a.svg").read_text() == random_text(30)
