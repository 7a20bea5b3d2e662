"""Folders are models where nobody else sees the page."""

import shutil
from types import SimpleNamespace

import pytest
from pages import STORY

import app
from space.jobs import Job
from space.limits import Refused
from space.models import BUNDLED
from space.service import Service
from space.settings import Settings


@pytest.fixture
def here(monkeypatch):
    """A machine where nothing says that others see the page."""
    for name in ("SPACE_ID", "GRADIO_SERVER_NAME", "GRADIO_SHARE", "GRADIO_ROOT_PATH"):
        monkeypatch.delenv(name, raising=False)


def test_folders_are_models_only_where_nobody_else_sees_the_page(folders, here, monkeypatch):
    own = Service(folders["bytes"], local_folders=True)
    assert own.load(folders["words"], Job(60)).window == 16
    with pytest.raises(Refused, match="not the name of a model"):
        Service(folders["bytes"]).load(folders["words"], Job(60))
    for name, value in (("SPACE_ID", "a/b"), ("GRADIO_SERVER_NAME", "0.0.0.0")):
        with monkeypatch.context() as outside:
            outside.setenv(name, value)
            assert not app.is_private()


def test_a_folder_is_one_model_however_it_is_written(folders, tmp_path, monkeypatch):
    own = Service(folders["bytes"], local_folders=True)
    shutil.copytree(folders["words"], tmp_path / "mine")
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path)
    for name in ("./mine", "mine/", str(tmp_path / "mine"), "sub/../mine"):
        assert own.load(name, Job(60)).name == str(tmp_path / "mine")
    assert own.load(folders["bytes"], Job(60)).name == BUNDLED
    assert own.shelf.names == [str(tmp_path / "mine"), BUNDLED]
    with pytest.raises(Refused, match="two different models"):
        own.compare(STORY, Settings("./mine"), str(tmp_path / "mine"), Job(60))


@pytest.mark.parametrize("name", ["n" * 500, "owner/" + "n" * 500, "a\0b", "./" + "n/" * 3000])
def test_names_that_no_disk_has_are_refused_with_a_sentence(folders, name):
    own = Service(folders["bytes"], local_folders=True)
    with pytest.raises(Refused, match="not the name of a model"):
        own.load(name, Job(60))


@pytest.mark.parametrize(
    "host, private",
    [
        *((None, True), ("127.0.0.1", True), ("localhost", True), ("::1", True)),
        *(("0.0.0.0", False), ("192.168.1.7", False), ("example.org", False), ("", False)),
    ],
)
def test_folders_are_named_only_by_people_at_this_machine(here, host, private):
    assert app.is_private(host) == private


def test_the_command_line_says_where_to_serve(here, monkeypatch, capsys):
    """`python app.py --help` served."""
    served = []

    def create(local_folders):
        return SimpleNamespace(
            launch=lambda **options: served.append((local_folders, options)), page_data={}
        )

    monkeypatch.setattr(app, "create_app", create)
    monkeypatch.setattr(app, "launch_options", lambda page: {})
    for wrong in (["--help"], ["--port", "70000"], ["folder"]):
        with pytest.raises(SystemExit) as left:
            app.main(wrong)
        assert (left.value.code == 0) == (wrong == ["--help"])
    assert "--host" in capsys.readouterr().out and not served
    app.main([])
    app.main(["--port", "8123", "--host", "0.0.0.0"])
    asked = [(own, told["server_name"], told["server_port"]) for own, told in served]
    assert asked == [(True, None, None), (False, "0.0.0.0", 8123)]
