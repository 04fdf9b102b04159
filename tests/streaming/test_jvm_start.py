"""How long a JVM may take to start, on a clock that the test moves."""

from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from mqlake.errors import OperationalError
from streaming.jvm import process
from streaming.jvm.process import START_TIMEOUT_SECONDS, await_start

if TYPE_CHECKING:
    import subprocess

BUSY_START_SECONDS = 240.0
"""Of a start that takes 5 s alone, where fifty programs want each processor."""


class Starting:
    """A JVM that writes how it is reached, or ends, at a time; None: it never does."""

    def __init__(
        self,
        connection: Path,
        monkeypatch: pytest.MonkeyPatch,
        *,
        writes_at: float | None = None,
        ends_at: float | None = None,
    ) -> None:
        self.now = 0.0
        self.returncode: int | None = None
        self._connection = connection
        self._writes_at, self._ends_at = writes_at, ends_at
        monkeypatch.setattr(process, "time", self)

    def poll(self) -> int | None:
        if self._ends_at is not None and self.now >= self._ends_at:
            self.returncode = 1
        return self.returncode

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self._writes_at is not None and self.now >= self._writes_at:
            self._connection.touch()

    def wait(self) -> None:
        await_start(self._connection, cast("subprocess.Popen[bytes]", self))


@pytest.fixture
def connection(tmp_path: Path) -> Path:
    return tmp_path / "connection"


def test_a_start_on_a_loaded_machine_is_waited_for(
    connection: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A further one in its place would make the machine slower, and take as long."""
    java = Starting(connection, monkeypatch, writes_at=BUSY_START_SECONDS)
    java.wait()
    assert java.now == pytest.approx(BUSY_START_SECONDS, abs=1.0)


def test_a_start_that_hangs_is_given_up(connection: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = Starting(connection, monkeypatch)
    with pytest.raises(OperationalError, match="java did not start in 300 s"):
        java.wait()
    assert java.now == pytest.approx(START_TIMEOUT_SECONDS, abs=1.0)


def test_a_jvm_that_ends_is_noticed_at_once(
    connection: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = Starting(connection, monkeypatch, ends_at=2.0)
    with pytest.raises(OperationalError, match="java ended with exit code 1 at start"):
        java.wait()
    assert java.now == pytest.approx(2.0, abs=0.1)
