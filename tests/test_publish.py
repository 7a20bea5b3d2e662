"""Publishing the Space: exactly the right files, in one commit, and in git itself."""

import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest
from huggingface_hub.hf_api import RepoFile
from space_models import ROOT

from space import publish

CARD = """---
title: T
sdk: gradio
app_file: app.py
short_description: {}
---
"""
METRIC, ABOUT = '_VERSION = "1.2.3"\n', "perplexity_sliding/__init__.py"
WEIGHTS = "demo_model/model.safetensors"
# A small copy of the project, in the order of git's list.
PUBLISHED = {
    ".gitattributes": "",
    "CHANGELOG.md": "",
    "LICENSE": "",
    "README.md": CARD.format("short"),
    "app.py": "from space.page import build\n",
    "demo_model/config.json": "{}",
    "demo_model/halve.py": "",
    WEIGHTS: "",
    "docs/notebook.ipynb": "",
    "docs/picture.png": "",
    "docs/python.md": 'evaluate.load("USER/perplexity_sliding")',
    "perplexity_sliding.py": METRIC,
    ABOUT: '__version__ = "1.2.3"\nAUTHOR = "{USER}, USERS, spaces/USER/x"\n',
    "perplexity_sliding/cli/compare.txt": "",
    "perplexity_sliding/plan/windows.py": "from .notes import text\n",
    "perplexity_sliding/py.typed": "",
    "pyproject.toml": "",
    "requirements.txt": "",
    "samples/story.txt": "",
    "score.py": "",
    "space/page.css": "",
    "space/page.js": "",
    "space/page.py": "",
}
# Around it, what is nobody's business.
OTHERS = (
    *(".env", ".gitignore", "benchmarks/run.py", "docs/renew.py", "space/publish.py"),
    *("demo_model/train.py", "tests/test_package.py"),
)


def commit(root, message="All"):
    names = ["-c", "user.name=T", "-c", "user.email=t@example.com"]
    for command in (["add", "-A"], [*names, "commit", "-qm", message]):
        subprocess.run(["git", *command], cwd=root, check=True)


@pytest.fixture
def project(tmp_path):
    for name, text in (PUBLISHED | dict.fromkeys(OTHERS, ".env")).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    commit(tmp_path)
    return tmp_path


class RecordingHub:
    """Stands in for the Hub's client.

    Attributes:
        calls: what would change the Space.
        code: files with their contents, by revision.
        tags: those of the Space.
        pointers: what it keeps in LFS.
    """

    def __init__(self):
        old = {"old_module.py": b"", "samples/old.txt": b""}
        self.calls, self.code, self.tags, self.pointers = [], {"main": old}, [], set()

    def list_repo_refs(self, name, repo_type):
        return SimpleNamespace(tags=[SimpleNamespace(name=tag) for tag in self.tags])

    def list_repo_tree(self, name, recursive, revision, repo_type):
        for file, content in self.code[revision].items():
            command = ["git", "hash-object", "--stdin"]
            done = subprocess.run(command, input=content, capture_output=True, check=True)
            yield RepoFile(path=file, size=len(content), oid=done.stdout.decode().strip())

    def get_paths_info(self, name, files, repo_type):
        return [
            SimpleNamespace(path=f, lfs={"size": 1} if f in self.pointers else None) for f in files
        ]

    def create_tag(self, name, **kwargs):
        self.calls.append(("create_tag", name, kwargs))

    def create_repo(self, *args, **kwargs):
        self.calls.append(("create_repo", args, kwargs))

    def upload_file(self, **kwargs):
        self.calls.append(("upload_file", kwargs["path_in_repo"]))

    def create_commit(self, name, operations, **kwargs):
        self.calls.append(("create_commit", operations))
        return SimpleNamespace(commit_url="https://example.com/commit", oid="abc")


@pytest.fixture
def hub(monkeypatch):
    """The Hub, on which the Space has nothing yet."""
    hub = RecordingHub()
    monkeypatch.setattr(publish, "HfApi", lambda: hub)
    return hub


@pytest.fixture
def published(project, hub):
    """The project, which the Hub has as it is."""
    code = {file: publish.content_of(file, "user/name", project) for file in PUBLISHED}
    hub.code |= {"main": dict(code), "release-1.2.3": dict(code)}
    hub.tags.append("release-1.2.3")
    return project


def test_a_dry_run_names_exactly_the_right_files_and_asks_nobody(project, capsys, monkeypatch):
    monkeypatch.setattr(publish, "HfApi", None)
    assert publish.main(["user/name", "--dry-run"], project) == 0
    *files, last = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in files] == list(PUBLISHED)
    assert f"{len(PUBLISHED)} files of version 1.2.3 for user/name; nothing" in last


def test_publishing_is_one_commit_that_also_removes_old_files(project, capsys, hub):
    assert publish.main(["user/name"], project) == 0
    created, attributes, (_, operations), tagged = hub.calls
    assert created[1] == ("user/name",)
    assert created[2]["repo_type"] == "space" and created[2]["space_sdk"] == "gradio"
    assert attributes == ("upload_file", ".gitattributes"), "before the weights come"
    added = {o.path_in_repo: o for o in operations if isinstance(o, publish.CommitOperationAdd)}
    removed = [o.path_in_repo for o in operations if isinstance(o, publish.CommitOperationDelete)]
    assert list(added) == list(PUBLISHED) and removed == ["old_module.py", "samples/old.txt"]
    named = {file: added[file].path_or_fileobj.decode() for file in (ABOUT, "docs/python.md")}
    assert 'AUTHOR = "{user}, USERS, spaces/user/x"' in named[ABOUT]
    assert named["docs/python.md"] == 'evaluate.load("user/perplexity_sliding")'
    # evaluate loads vX.Y.Z of its own version by itself, and makes vX.Y.Z of a revision X.Y.Z
    revision = {"tag": "release-1.2.3", "revision": "abc", "repo_type": "space"}
    assert tagged == ("create_tag", "user/name", revision)
    printed = capsys.readouterr()
    assert "https://example.com/commit" in printed.out and not printed.err


def test_only_what_has_changed_is_published_again(published, hub, capsys):
    assert publish.main(["user/name"], published) == 0
    assert [call[0] for call in hub.calls] == ["create_repo"]
    assert capsys.readouterr().out == "user/name has all of it already.\n"
    (published / "docs/python.md").write_text("more")
    commit(published)
    assert publish.main(["user/name"], published) == 0
    [(_, operations)] = [call for call in hub.calls if call[0] == "create_commit"]
    assert [operation.path_in_repo for operation in operations] == ["docs/python.md"]


@pytest.mark.parametrize("is_tagged", [True, False])
def test_other_code_is_not_published_under_a_version_that_is_there(
    published, hub, capsys, is_tagged
):
    """Neither where the tag is there, nor where a publication broke off before it."""
    if is_tagged:
        hub.code["main"] = {}
    else:
        hub.tags.clear()
    (published / "perplexity_sliding/new.py").write_text("")
    commit(published)
    assert publish.main(["user/name"], published) == 2
    assert [call[0] for call in hub.calls] == ["create_repo"]
    message = capsys.readouterr().err
    assert "Version 1.2.3" in message and "perplexity_sliding/new.py" in message
    for file in ("perplexity_sliding.py", ABOUT):
        text = (published / file).read_text()
        (published / file).write_text(text.replace("1.2.3", "1.2.4"))
    commit(published)
    assert publish.main(["user/name"], published) == 0
    assert hub.calls[-1][2]["tag"] == "release-1.2.4"


REFUSED = {
    "two versions": ("perplexity_sliding.py", '_VERSION = "1.2.4"\n', "1.2.4 and 1.2.3"),
    "no header": ("README.md", "no header", "must begin with a YAML header"),
    "a long line": ("README.md", CARD.format("x" * 61), "at most 60 characters, got 61"),
    "a large file": (WEIGHTS, "x" * 10_000_001, "must have at most 10,000,000 bytes"),
    "no model": (WEIGHTS, None, f"`{WEIGHTS}` must be there"),
}


@pytest.mark.parametrize(("file", "text", "said"), REFUSED.values(), ids=REFUSED)
def test_what_would_make_no_good_space_is_refused(project, hub, capsys, file, text, said):
    (project / file).unlink() if text is None else (project / file).write_text(text)
    commit(project)
    assert publish.main(["user/name"], project) == 2
    assert said in capsys.readouterr().err and not hub.calls


def test_what_is_not_committed_is_not_published(project, hub, capsys):
    (project / "perplexity_sliding/plan/windows.py").write_text("changed = True\n")
    (project / "space/new.py").write_text("")
    assert publish.main(["user/name"], project) == 2
    message = capsys.readouterr().err
    assert "Commit first: " in message and not hub.calls
    assert "perplexity_sliding/plan/windows.py" in message and "space/new.py" in message


def test_what_the_hub_refuses_ends_in_one_sentence(project, hub, capsys, monkeypatch):
    assert publish.main(["https://huggingface.co/spaces/user/name"], project) == 2
    assert "must be USER/NAME" in capsys.readouterr().err

    def refuse(*args, **kwargs):
        raise ConnectionError("401 Client Error: Unauthorized\n\nInvalid user token.")

    monkeypatch.setattr(hub, "create_repo", refuse)
    assert publish.main(["user/name"], project) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1
    assert "401 Client Error: Unauthorized" in printed.err and "hf auth login" in printed.err


def test_the_files_are_enough_to_run_the_space_and_none_is_sent_to_lfs(tmp_path):
    """The app is built, and a file scored, from the published files alone."""
    files = publish.list_files(ROOT)
    attributes = publish.git(ROOT, "check-attr", "filter", "--", *files)
    assert "lfs" not in attributes and f"{WEIGHTS}: filter: " in attributes
    for file in files:
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
