"""Publishing the Space: exactly the right files, in one commit, and in git itself."""

import os
import shutil
import subprocess
import sys
from types import SimpleNamespace
from typing import ClassVar

import pytest
from huggingface_hub.hf_api import RepoFile
from space_models import ROOT

from perplexity_sliding.cli import main as score
from space import publish

CARD = """---
title: T
sdk: gradio
app_file: app.py
short_description: {}
---
![what it looks like](docs/picture.png)
"""


METRIC = '_VERSION = "1.2.3"\n'


@pytest.fixture
def project(tmp_path):
    """A small copy of the project under git, with files around it that are nobody's business."""
    files = {
        ".gitattributes": "",
        "README.md": CARD.format("short"),
        "CHANGELOG.md": "",
        "LICENSE": "",
        "requirements.txt": "",
        "constraints.txt": "",
        "pyproject.toml": "",
        "app.py": "from space.page import build\n",
        "perplexity_sliding.py": METRIC,
        "perplexity_sliding/__init__.py": "",
        "perplexity_sliding/about.py": 'VERSION = "1.2.3"\n',
        "perplexity_sliding/plan/__init__.py": "",
        "perplexity_sliding/plan/windows.py": "from .notes import text\n",
        "perplexity_sliding/cli/main.py": "",
        "perplexity_sliding/cli/compare.txt": "",
        "perplexity_sliding/views/report.css": "",
        "perplexity_sliding/py.typed": "",
        "score.py": "import json\n\ndef late():\n    from perplexity_sliding.cli.main import main\n",
        ".env": "SECRET=1",
        ".gitignore": ".env",
        "benchmarks/run.py": "",
        "docs/renew.py": "",
        "space/__init__.py": "",
        "space/page.py": "from demo_model.halve import halve\n",
        "space/page.css": "",
        "space/page.js": "",
        "space/publish.py": "",
        "samples/story.txt": "",
        "samples/README.md": "",
        "demo_model/config.json": "{}",
        "demo_model/model.safetensors": "",
        "demo_model/README.md": "",
        "demo_model/halve.py": "",
        "demo_model/train.py": "",
        "docs/picture.png": "",
        "docs/python.md": 'evaluate.load("USER/perplexity_sliding")',
        "docs/notebook.ipynb": "",
        "tests/test_package.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    for command in (["init", "-q"], ["add", "-A"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    names = ["-c", "user.name=T", "-c", "user.email=t@example.com"]
    subprocess.run(["git", *names, "commit", "-qm", "All"], cwd=tmp_path, check=True)
    return tmp_path


EXPECTED = [
    ".gitattributes", "CHANGELOG.md", "LICENSE", "README.md", "app.py", "constraints.txt",
    "demo_model/README.md", "demo_model/config.json", "demo_model/halve.py",
    "demo_model/model.safetensors", "docs/notebook.ipynb", "docs/picture.png", "docs/python.md",
    "perplexity_sliding.py", "perplexity_sliding/__init__.py", "perplexity_sliding/about.py",
    "perplexity_sliding/cli/compare.txt", "perplexity_sliding/cli/main.py",
    "perplexity_sliding/plan/__init__.py", "perplexity_sliding/plan/windows.py",
    "perplexity_sliding/py.typed", "perplexity_sliding/views/report.css", "pyproject.toml",
    "requirements.txt", "samples/README.md", "samples/story.txt", "score.py", "space/__init__.py",
    "space/page.css", "space/page.js", "space/page.py",
]  # fmt: skip


def test_exactly_the_right_files(project):
    assert publish.list_files(project) == EXPECTED


def test_a_dry_run_names_them_and_asks_nobody(project, capsys, monkeypatch):
    monkeypatch.setattr(publish, "HfApi", None)
    assert publish.main(["user/name", "--dry-run"], project) == 0
    printed = capsys.readouterr().out
    assert [line.split()[1] for line in printed.splitlines()[:-1]] == EXPECTED
    assert f"{len(EXPECTED)} files of version 1.2.3 for user/name; nothing" in printed


class RecordingHub:
    """Stands in for the Hub's client and keeps what it was asked to do.

    Attributes:
        calls: what would change the Space.
        code: files with their contents, by revision.
        tags: those of the Space.
    """

    calls: ClassVar[list] = []
    pointers: ClassVar[set] = set()
    code: ClassVar[dict[str, dict[str, bytes]]] = {"main": {}}
    tags: ClassVar[list[str]] = []

    def list_repo_refs(self, name, repo_type):
        return SimpleNamespace(tags=[SimpleNamespace(name=tag) for tag in self.tags])

    def list_repo_tree(self, name, recursive, revision, repo_type):
        assert recursive
        for file, content in self.code[revision].items():
            command = ["git", "hash-object", "--stdin"]
            done = subprocess.run(command, input=content, capture_output=True, check=True)
            yield RepoFile(path=file, size=len(content), oid=done.stdout.decode().strip())

    def create_tag(self, name, **kwargs):
        self.calls.append(("create_tag", name, kwargs))

    def create_repo(self, *args, **kwargs):
        self.calls.append(("create_repo", args, kwargs))

    def upload_file(self, **kwargs):
        self.calls.append(("upload_file", (), kwargs))

    def get_paths_info(self, name, files, repo_type):
        assert (name, repo_type) == ("user/name", "space")
        return [
            SimpleNamespace(path=f, lfs={"size": 1} if f in self.pointers else None) for f in files
        ]

    def create_commit(self, name, operations, **kwargs):
        self.calls.append(("create_commit", name, operations, kwargs))
        return SimpleNamespace(commit_url="https://example.com/commit", oid="abc")


@pytest.fixture
def hub(monkeypatch):
    """The Hub, on which the Space has nothing yet."""
    monkeypatch.setattr(publish, "HfApi", RecordingHub)
    old = {"old_module.py": b"", "samples/old.txt": b""}
    for name, value in {"calls": [], "code": {"main": old}, "tags": []}.items():
        monkeypatch.setattr(RecordingHub, name, value)
    return RecordingHub


def test_publishing_is_one_commit_that_also_removes_old_files(project, capsys, hub):
    assert publish.main(["user/name"], project) == 0
    created, attributes, committed, tagged = hub.calls
    assert created[1] == ("user/name",)
    assert created[2]["repo_type"] == "space" and created[2]["space_sdk"] == "gradio"
    assert attributes[0] == "upload_file"  # before the weights come
    assert attributes[2]["path_or_fileobj"] == (project / ".gitattributes").read_bytes()
    assert attributes[2]["path_in_repo"] == ".gitattributes"
    added = [o.path_in_repo for o in committed[2] if isinstance(o, publish.CommitOperationAdd)]
    removed = [o.path_in_repo for o in committed[2] if isinstance(o, publish.CommitOperationDelete)]
    assert added == EXPECTED
    assert removed == ["old_module.py", "samples/old.txt"]
    # evaluate loads vX.Y.Z of its own version by itself, and makes vX.Y.Z of a revision X.Y.Z
    revision = {"tag": "release-1.2.3", "revision": "abc", "repo_type": "space"}
    assert tagged == ("create_tag", "user/name", revision)
    printed = capsys.readouterr()
    assert "https://example.com/commit" in printed.out and not printed.err


@pytest.fixture
def published(project, hub):
    """Publish the project as it is, as far as the Hub is asked about it."""
    files = publish.list_files(project)
    code = {file: publish.content_of(file, "user/name", project) for file in files}
    hub.code |= {"main": dict(code), "release-1.2.3": dict(code)}
    hub.tags.append("release-1.2.3")
    return project


def change(project, file, text):
    (project / file).write_text(text)
    names = ["-c", "user.name=T", "-c", "user.email=t@example.com"]
    for command in (["add", "-A"], [*names, "commit", "-qm", "More"]):
        subprocess.run(["git", *command], cwd=project, check=True)


def test_documents_are_published_again_under_the_same_version(published, hub):
    change(published, "docs/python.md", "more")
    assert publish.main(["user/name"], published) == 0
    assert [call[0] for call in hub.calls] == ["create_repo", "create_commit"]
    assert [operation.path_in_repo for operation in hub.calls[-1][2]] == ["docs/python.md"]


def test_a_second_publication_without_a_change_makes_no_commit(published, hub, capsys):
    assert publish.main(["user/name"], published) == 0
    assert [call[0] for call in hub.calls] == ["create_repo"]
    assert capsys.readouterr().out == "user/name has all of it already.\n"


@pytest.mark.parametrize("name", ["badname", "https://huggingface.co/spaces/user/name", "a/b/c"])
def test_a_name_that_is_none_is_refused(project, hub, capsys, name):
    assert publish.main([name], project) == 2
    assert "must be USER/NAME" in capsys.readouterr().err and not hub.calls


def test_a_refused_token_ends_in_one_sentence(project, hub, capsys, monkeypatch):
    """It was a traceback after the names of all files."""

    def refuse(*args, **kwargs):
        raise ConnectionError("401 Client Error: Unauthorized\n\nInvalid user token.")

    monkeypatch.setattr(RecordingHub, "create_repo", refuse)
    assert publish.main(["user/name"], project) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1
    assert "401 Client Error: Unauthorized" in printed.err and "hf auth login" in printed.err


@pytest.mark.parametrize("is_tagged", [True, False])
@pytest.mark.parametrize(
    "file",
    ["perplexity_sliding/plan/windows.py", "perplexity_sliding/new.py", "perplexity_sliding.py"],
)
def test_other_code_is_not_published_under_a_version_that_is_there(
    published, hub, capsys, file, is_tagged
):
    """Neither where the tag is there, nor where a publication broke off before it."""
    if is_tagged:
        hub.code["main"] = {}
    else:
        hub.tags.clear()
    change(published, file, METRIC + "more = True\n")
    assert publish.main(["user/name"], published) == 2
    assert [call[0] for call in hub.calls] == ["create_repo"]
    message = capsys.readouterr().err
    assert "Version 1.2.3" in message and file in message
    if file == "perplexity_sliding.py":
        return
    change(published, "perplexity_sliding.py", METRIC.replace("1.2.3", "1.2.4"))
    change(published, "perplexity_sliding/about.py", 'VERSION = "1.2.4"\n')
    assert publish.main(["user/name"], published) == 0
    assert hub.calls[-1][2]["tag"] == "release-1.2.4"


def test_a_broken_off_publication_is_completed(published, hub):
    hub.tags.clear()
    assert publish.main(["user/name"], published) == 0
    assert hub.calls[-1][2]["tag"] == "release-1.2.3"


def test_the_metric_and_its_package_must_be_of_one_version(project, capsys, hub):
    change(project, "perplexity_sliding.py", METRIC.replace("1.2.3", "1.2.4"))
    assert publish.main(["user/name"], project) == 2
    assert "1.2.4 and 1.2.3" in capsys.readouterr().err
    assert not hub.calls


def test_what_the_hub_keeps_in_lfs_all_the_same_is_told(project, capsys, hub, monkeypatch):
    monkeypatch.setattr(RecordingHub, "pointers", {"demo_model/model.safetensors"})
    assert publish.main(["user/name"], project) == 0
    said = capsys.readouterr().err
    assert "a clone needs git-lfs: the Hub keeps demo_model/model.safetensors there" in said


def test_a_file_too_large_for_git_is_refused(project, capsys, monkeypatch):
    monkeypatch.setattr(publish, "LARGEST_FILE", 1)
    assert publish.main(["user/name", "--dry-run"], project) == 2
    assert "`README.md` must have at most 1 bytes" in capsys.readouterr().err


def test_what_is_not_committed_is_not_published(project, capsys, monkeypatch):
    monkeypatch.setattr(publish, "HfApi", None)
    (project / "perplexity_sliding/plan/windows.py").write_text("changed = True\n")
    (project / "space/new.py").write_text("")
    assert publish.main(["user/name"], project) == 2
    changed = "perplexity_sliding/plan/windows.py, space/new.py"
    assert f"Commit first: {changed} differ" in sorted_names(capsys)
    assert publish.main(["user/name", "--dry-run"], project) == 0


def sorted_names(capsys):
    message = capsys.readouterr().err
    names = message.split("Commit first: ")[1].split(" differ")[0]
    return f"Commit first: {', '.join(sorted(names.split(', ')))} differ"


@pytest.mark.parametrize(
    "readme, said",
    [
        ("no header", "must begin with a YAML header"),
        (CARD.format("x" * 61), "at most 60 characters, got 61"),
    ],
)
def test_a_readme_that_would_make_no_good_space_is_refused(project, capsys, readme, said):
    (project / "README.md").write_text(readme)
    assert publish.main(["user/name", "--dry-run"], project) == 2
    assert said in capsys.readouterr().err


def test_a_missing_model_is_refused(project, capsys):
    (project / "demo_model/model.safetensors").unlink()
    assert publish.main(["user/name", "--dry-run"], project) == 2
    assert "`demo_model/model.safetensors` must be there" in capsys.readouterr().err


def test_the_files_are_enough_to_run_the_space(tmp_path):
    """The app is built, and a file scored, from the published files alone."""
    for file in publish.list_files(ROOT):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, tmp_path / file)
    source = (
        "import app; app.create_app(); from perplexity_sliding.cli.main import main;"
        "main(['samples/note.txt'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", source], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "note.txt" in done.stdout


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:{}\nsize {}\n"
BY_THE_HUB = "*.safetensors filter=lfs diff=lfs merge=lfs -text\n"


def clone_without_lfs(attributes, tmp_path):
    """What a clone without git-lfs brings of the published files, under these attributes.

    The Hub keeps a pointer for each file that the attributes send to LFS.
    """
    hub, clone = tmp_path / "hub", tmp_path / "clone"
    for file in publish.list_files(ROOT):
        (hub / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, hub / file)
    (hub / ".gitattributes").write_text(attributes, "utf-8")
    nobodys = tmp_path / "gitconfig"
    nobodys.touch()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment |= {"GIT_CONFIG_GLOBAL": str(nobodys), "GIT_CONFIG_NOSYSTEM": "1"}

    def git(*arguments, **kwargs):
        command = ["git", "-c", "user.name=T", "-c", "user.email=t@example.com", *arguments]
        done = subprocess.run(
            command, cwd=hub, env=environment, capture_output=True, text=True, check=False, **kwargs
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    git("init", "-q")
    paths = "\n".join(publish.list_files(ROOT))
    for line in git("check-attr", "filter", "--stdin", input=paths).splitlines():
        file, _, value = line.split(": ")
        if value == "lfs":
            size = (hub / file).stat().st_size
            (hub / file).write_text(POINTER.format("0" * 64, size), "utf-8")
    git("add", "-A")
    git("commit", "-qm", "Publish")
    git("clone", "-q", str(hub), str(clone))
    return clone


def test_a_clone_without_lfs_scores(tmp_path, capsys, monkeypatch):
    clone = clone_without_lfs((ROOT / ".gitattributes").read_text("utf-8"), tmp_path)
    weights = "demo_model/model.safetensors"
    assert (clone / weights).read_bytes() == (ROOT / weights).read_bytes()
    command = [sys.executable, "score.py", "samples/note.txt", "--quiet"]
    done = subprocess.run(command, cwd=clone, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    monkeypatch.chdir(ROOT)
    assert score.main(["samples/note.txt", "--quiet"]) == 0
    assert done.stdout == capsys.readouterr().out


def test_the_attributes_of_the_hub_would_bring_a_pointer(tmp_path, capsys):
    clone = clone_without_lfs(BY_THE_HUB, tmp_path)
    assert (clone / "demo_model/model.safetensors").read_text("utf-8").startswith("version https")
    note, model = clone / "samples/note.txt", clone / "demo_model"
    assert score.main([str(note), f"--model={model}"]) == 2
    assert "could not be loaded" in capsys.readouterr().err


def test_the_citation_names_the_owner(project, hub):
    """Of the code, and of the README; the code counts as it is published, when it is compared."""
    about = "perplexity_sliding/about.py"
    text = (project / about).read_text("utf-8") + 'AUTHOR = "{USER}, USERS, spaces/USER/x"\n'
    change(project, about, text)
    assert publish.main(["user/name"], project) == 0
    (committed,) = [call for call in hub.calls if call[0] == "create_commit"]
    contents = {
        operation.path_in_repo: operation.path_or_fileobj
        for operation in committed[2]
        if isinstance(operation, publish.CommitOperationAdd)
    }
    expected = text.replace("{USER}", "{user}").replace("spaces/USER", "spaces/user")
    assert contents[about] == expected.encode()
    assert contents["docs/python.md"] == b'evaluate.load("user/perplexity_sliding")'
    assert contents["app.py"] == (project / "app.py").read_bytes()
    hub.code |= {"main": contents}
    assert publish.main(["user/name"], project) == 0
