"""Visitors who wait: for their turn, and for downloads."""

import threading
import time

import huggingface_hub
import pytest
from fake_hub import FakeHub
from space_models import byte_model

from space.downloads import TAKES_BAR
from space.jobs import Job, Shown, Stopped, Update, follow
from space.limits import Limits, Refused
from space.line import Line
from space.models import BUNDLED
from space.service import Service
from space.settings import Settings

TEXT = "The quick brown fox jumps over the lazy dog. " * 4
SOON = 5  # seconds, for what takes a fraction of one


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return byte_model(tmp_path_factory.mktemp("models") / "bytes")


@pytest.fixture
def hub(folder, monkeypatch):
    """A Hub with a model whose weights stop half-way until `hub.gates["owner/slow"]` is set."""
    monkeypatch.setattr(huggingface_hub.constants, "DOWNLOAD_CHUNK_SIZE", 1024)
    hub = FakeHub()
    hub.add("owner/slow", folder)
    hub.gates["owner/slow"] = threading.Event()
    yield hub
    hub.gates["owner/slow"].set()
    hub.close()


@pytest.fixture
def service(hub, folder):
    return Service(folder, Limits(), hub.endpoint)


class Request:
    """A request on a thread of its own, and what it told."""

    def __init__(self, work, visitor=None, address=None):
        self.job = Job(60, visitor, address)
        self.told, self.error = [], None
        self.thread = threading.Thread(target=self._run, args=[work], daemon=True)
        self.thread.start()

    def _run(self, work):
        try:
            for told in follow(self.job, work):
                self.told.append(told)
        except Exception as error:
            self.error = error

    def until_it_says(self, words):
        until(lambda: any(words in t.sentence for t in self.told if isinstance(t, Update)), words)

    def ends(self):
        """How many seconds it takes to end."""
        begun = time.monotonic()
        self.thread.join(timeout=60)
        assert not self.thread.is_alive()
        return time.monotonic() - begun


def until(condition, what):
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, f"never: {what}"
        time.sleep(0.02)


def hold(line, release):
    """Work that has its turn until an event."""

    def work(job):
        with line.turn(job):
            release.wait(60)

    return work


# In line


def test_turns_come_in_order_and_one_at_a_time():
    line, order, release = Line(20), [], threading.Event()

    def work(number):
        def run(job):
            with line.turn(job):
                order.append(("begins", number))
                release.wait(60)
                order.append(("ends", number))

        return run

    requests = []
    for number in range(4):
        requests.append(Request(work(number)))
        until(lambda number=number: len(line) == number + 1, "in line")
    release.set()
    for request in requests:
        request.ends()
    assert order == [(what, n) for n in range(4) for what in ("begins", "ends")]
    assert len(line) == 0


def test_who_waits_knows_the_place_and_the_time():
    line, release = Line(20), threading.Event()
    with line.turn(Job(60)):
        time.sleep(0.2)
    line._lengths.extend([30.0] * 19)  # what the last turns took
    first = Request(hold(line, release))
    until(lambda: len(line) == 1, "in line")
    second = Request(hold(line, release))
    second.until_it_says("You are next in line: about")
    third = Request(hold(line, release))
    third.until_it_says("You are 2nd in line: about")
    [seconds] = {int(told.sentence.split("about ")[1].split()[0]) for told in third.told[:1]}
    assert 50 <= seconds <= 60  # two turns of half a minute, the first of them begun
    release.set()
    for request in (first, second, third):
        request.ends()


def test_nothing_is_promised_before_anything_is_known():
    line, release = Line(20), threading.Event()
    first = Request(hold(line, release))
    until(lambda: len(line) == 1, "in line")
    second = Request(hold(line, release))
    second.until_it_says("You are next in line.")
    release.set()
    first.ends(), second.ends()


def test_stop_leaves_the_line_at_once():
    line, release = Line(20), threading.Event()
    first = Request(hold(line, release))
    until(lambda: len(line) == 1, "in line")
    second = Request(hold(line, release))
    second.until_it_says("next in line")
    second.job.stop()
    assert second.ends() < SOON
    assert isinstance(second.error, Stopped)
    assert len(line) == 1  # the first still has its turn
    release.set()
    first.ends()


def run_in_line(line, requests):
    """Let requests wait behind one that has its turn; return their names in the order of theirs.

    Args:
        requests: name, visitor, address and expected seconds of each, in the order they come.
    """
    order, release = [], threading.Event()

    def work(name, expected):
        def run(job):
            job.expected = expected
            with line.turn(job):
                order.append(name)

        return run

    first = Request(hold(line, release))
    until(lambda: len(line) == 1, "in line")
    running = []
    for number, (name, visitor, address, expected) in enumerate(requests):
        running.append(Request(work(name, expected), visitor, address))
        until(lambda number=number: len(line) == number + 2, "in line")
    release.set()
    for request in (first, *running):
        request.ends()
        assert request.error is None
    return order


def test_many_requests_of_one_address_stand_in_nobodys_way():
    line = Line(20)
    line._accounts.charge("1.1.1.1", 30)  # seconds that it had
    flood = [(f"flood {n}", "a program", "1.1.1.1", 0) for n in range(3)]
    order = run_in_line(line, [*flood, ("other", "visitor", "2.2.2.2", 0)])
    assert order == ["other", "flood 0", "flood 1", "flood 2"]


def test_a_class_behind_one_address_shares_its_turns():
    """Each of two visitors was refused a third request; now who had none comes before who had some."""
    line = Line(20)
    line._accounts.charge(("1.1.1.1", "busy"), 30)
    waiting = [("busy", "busy", "1.1.1.1", 0)] + [(f"{n}", f"{n}", "1.1.1.1", 0) for n in range(4)]
    assert run_in_line(line, waiting) == ["0", "1", "2", "3", "busy"]


def test_a_short_text_passes_long_ones_however_many_addresses_they_have():
    flood = [(f"flood {n}", "a program", f"1.1.1.{n}", 50) for n in range(3)]
    order = run_in_line(Line(20), [*flood, ("short", "visitor", "2.2.2.2", 0.1)])
    assert order[0] == "short"


def test_what_a_visitor_had_is_forgotten(monkeypatch):
    line = Line(20)
    line._accounts.charge("1.1.1.1", 100)
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 60)
    assert line._accounts["1.1.1.1"] == pytest.approx(50, rel=1e-3)
    monkeypatch.setattr(time, "monotonic", lambda: now + 6000)
    line._accounts.charge("2.2.2.2", 1)
    assert set(line._accounts._had) == {"2.2.2.2"}


def test_a_full_line_refuses_who_had_most_with_a_sentence():
    line, release = Line(waiting=1), threading.Event()
    line._accounts.charge("1.1.1.1", 30)
    running = Request(hold(line, release))
    until(lambda: len(line) == 1, "in line")
    greedy = Request(hold(line, release), "a program", "1.1.1.1")
    until(lambda: len(line) == 2, "in line")
    modest = Request(hold(line, release), "visitor", "2.2.2.2")
    greedy.ends()
    assert isinstance(greedy.error, Refused) and "no room for more" in str(greedy.error)
    greedy = Request(hold(line, release), "a program", "1.1.1.1")
    greedy.ends()
    assert isinstance(greedy.error, Refused)
    release.set()
    for request in (running, modest):
        request.ends()
        assert request.error is None


def test_who_has_left_gives_up_the_place():
    line, release = Line(20), threading.Event()
    first = Request(hold(line, release))
    until(lambda: len(line) == 1, "in line")
    second = Request(hold(line, release))
    until(lambda: len(line) == 2, "in line")
    second.job.has_left = lambda: True
    assert second.ends() < SOON
    assert isinstance(second.error, Stopped) and len(line) == 1
    release.set()
    first.ends()


def test_a_turn_ends_when_its_work_fails():
    line = Line(20)
    with pytest.raises(ZeroDivisionError), line.turn(Job(60)):
        1 / 0  # noqa: B018
    with line.turn(Job(60)):
        assert len(line) == 1


# Downloads


def test_nobody_waits_for_anothers_download(service, hub):
    slow = Request(lambda job: service.load("owner/slow", job))
    slow.until_it_says("Downloading owner/slow")
    other = Request(lambda job: service.score(TEXT, Settings(BUNDLED), job))
    other.ends()
    assert other.error is None and isinstance(other.told[-1], Shown)
    assert slow.thread.is_alive()
    hub.gates["owner/slow"].set()
    slow.ends()
    assert slow.told[-1].result.name == "owner/slow"


@pytest.mark.skipif(
    not TAKES_BAR, reason="this huggingface_hub tells nothing of a download's progress"
)
def test_a_download_shows_how_far_it_is(service, hub):
    slow = Request(lambda job: service.load("owner/slow", job))
    until(lambda: (getattr(slow.told[-1], "share", 0) or 0) > 0.3 if slow.told else 0, "a bar")
    assert slow.told[-1].share < 0.8  # half of it came
    hub.gates["owner/slow"].set()
    slow.ends()


def test_stop_is_felt_during_a_download(service, hub):
    slow = Request(lambda job: service.load("owner/slow", job))
    slow.until_it_says("Downloading owner/slow")
    slow.job.stop()
    assert slow.ends() < SOON
    assert isinstance(slow.error, Stopped)
    assert service.shelf.names == []


def test_two_who_want_the_same_model_share_a_download(service, hub):
    both = [Request(lambda job: service.load("owner/slow", job)) for _ in range(2)]
    for request in both:
        request.until_it_says("Downloading owner/slow")
    both[0].job.stop()
    both[0].ends()
    hub.gates["owner/slow"].set()
    both[1].ends()
    assert both[1].told[-1].result.name == "owner/slow"
    weights = [path for path in hub.asked if path.endswith("model.safetensors")]
    assert len(weights) <= 2  # HEAD and GET, once


def test_a_model_put_away_while_its_visitor_waited_is_fetched_again(service, hub):
    hub.gates["owner/slow"].set()
    service.load("owner/slow", Job(60))
    with service.shelf.fetched("owner/slow", Job(60)) as source:
        assert source.folder is None
        service.shelf._models.clear()
        assert service.shelf.open("owner/slow", source, Job(60)).name == "owner/slow"
