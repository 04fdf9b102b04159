import io
import json

import pytest

from launcher.progress import PipeProgress, PlainProgress, replay
from mqlake.errors import OperationalError


def test_plain_lines_come_once_for_each_change_and_ready_goes_to_the_output() -> None:
    errors, output = io.StringIO(), io.StringIO()
    progress = PlainProgress(errors, output)
    progress.part("log", "starting")
    progress.part("log", "starting")
    progress.part("log", "serving", done=True)
    progress.note("stopping")
    progress.ready("ready mqtt://x\ntry it:  x\nstop it: y")
    lines = [line.partition(" s  ")[2] or line for line in errors.getvalue().splitlines()]
    assert lines == [
        *("log: starting", "log: serving", "mqlake: stopping"),
        *("try it:  x", "stop it: y"),
    ]
    assert output.getvalue() == "ready mqtt://x\n"


def test_what_a_detached_system_says_is_shown_by_whoever_waits() -> None:
    pipe = io.StringIO()
    pipe.close = lambda: None  # type: ignore[method-assign]
    sender = PipeProgress(pipe)
    sender.part("log", "serving", done=True)
    sender.ready("ready mqtt://x")
    sender.note("after that nobody listens")
    errors, output = io.StringIO(), io.StringIO()
    replay(pipe.getvalue().splitlines(), PlainProgress(errors, output))
    assert "log: serving" in errors.getvalue()
    assert "nobody" not in errors.getvalue()
    assert output.getvalue() == "ready mqtt://x\n"


def test_detached_system_that_failed_or_vanished_is_an_error() -> None:
    with pytest.raises(OperationalError, match=r"^port 1883 is in use$"):
        replay([json.dumps(["failed", "port 1883 is in use"])], PlainProgress())
    with pytest.raises(OperationalError, match="ended while it started"):
        replay([], PlainProgress())


def test_a_closed_terminal_does_not_end_the_system() -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    PlainProgress(Gone(), Gone()).ready("ready")
    progress = PipeProgress(Gone())
    progress.note("x")
    progress.ready("ready")
