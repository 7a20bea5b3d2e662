"""What the tests of the page share: models, a Hub and a service that scores with them.

No test changes what is of the whole session.
"""

import pytest
from fake_hub import FakeHub
from pages import MANY
from space_models import bundled_model, byte_model, word_model

from space.jobs import Job
from space.limits import Limits
from space.models import BUNDLED
from space.service import Service
from space.settings import Settings


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    base = tmp_path_factory.mktemp("models")
    return {
        "bundled": bundled_model(base / "bundled"),
        "bytes": byte_model(base / "bytes"),
        "words": word_model(base / "words"),
    }


@pytest.fixture(scope="session")
def hub(folders):
    hub = FakeHub()
    hub.add("owner/bytes", folders["bytes"])
    hub.add("owner/words", folders["words"])
    yield hub
    hub.close()


@pytest.fixture(scope="session")
def service(folders, hub):
    """A service whose bundled model reads bytes, 64 at a time."""
    return Service(folders["bytes"], Limits(), hub.endpoint)


@pytest.fixture(scope="session")
def scored(service):
    return service.score(MANY * 2, Settings(BUNDLED, 64, 16), Job(60))
