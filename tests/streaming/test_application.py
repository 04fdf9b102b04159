"""How an application of Spark ends, with a process in the place of Java, and without Spark."""

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError

from mqlake.clock import ManualClock
from mqlake.processes.heart import Heart
from streaming.application import application
from streaming.application.application import Engine, Stop, run_engine
from streaming.jvm.process import Jvm

pytestmark = pytest.mark.programs


class Guard:
    """Hears what an engine ended of."""

    def __init__(self) -> None:
        self.is_closed = False

    def open(self, _spark: object) -> None:
        pass

    def close(self) -> None:
        self.is_closed = True


class World:
    """An engine whose Java answers nothing."""

    def __init__(self, folder: Path) -> None:
        self.guard: Any = Guard()
        self.stop = Stop()
        self.stop.starting = False
        self.heart = Heart("lake", folder / "lake.json")
        self.java = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])

    def run(self, work: Any) -> int:
        none: Any = None
        jvm = Jvm(self.java, 0, "")
        return run_engine(
            none, lambda: (none, jvm), self.guard, self.heart, self.stop, ManualClock(), work
        )

    def ask_java(self) -> None:
        """Wait for its answer, as py4j does."""
        self.java.wait(120)
        raise Py4JNetworkError("Answer from Java side is empty")


def test_an_end_that_takes_too_long_is_one_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(application, "END_SECONDS", 0.1)
    world = World(tmp_path)

    def work(engine: Engine) -> int:
        engine.stop.asked.set()
        world.ask_java()
        return 1

    assert world.run(work) == 0
    assert world.java.returncode is not None
    assert world.guard.is_closed, "no message is to blame"


def test_java_that_ends_by_itself_is_no_end_in_order(tmp_path: Path) -> None:
    world = World(tmp_path)

    def work(_engine: Engine) -> int:
        world.java.kill()
        world.ask_java()
        return 0

    with pytest.raises(Py4JError):
        world.run(work)
    assert not world.guard.is_closed


def test_an_end_in_order_is_not_cut_short(tmp_path: Path) -> None:
    world = World(tmp_path)

    def work(engine: Engine) -> int:
        engine.stop.asked.set()
        assert world.java.poll() is None
        return 0

    assert world.run(work) == 0
    assert world.java.returncode is not None, "nobody needs it any more"
    assert world.guard.is_closed


def test_who_is_busy_is_not_taken_for_stuck(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(application, "INTERVAL_SECONDS", 0.01)
    heart = Heart("lake", tmp_path / "lake.json")
    said: list[str] = []
    heard = threading.Event()

    def beat(*, healthy: bool, detail: str, figures: object = None) -> None:
        assert not healthy
        said.append(detail)
        if len(said) >= 3:
            heard.set()

    monkeypatch.setattr(heart, "beat", beat)
    with heart.during("starting Spark"):
        assert heard.wait(60)
    assert set(said) == {"starting Spark"}
    assert not any(thread.name == "heart" for thread in threading.enumerate())
