"""Spark is there while somebody uses it, and who uses it hears how it ends."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.testing.systems import await_condition
from mqlake.errors import OperationalError
from mqlake.processes.control_socket import connect
from mqlake.processes.query_application import (
    NAME,
    SOCKET_FILE,
    Cause,
    End,
    NotReady,
    QueryApplication,
    Unwanted,
    Use,
)
from mqlake.processes.status import STATE_FILE, ProcessReport, replace_file
from streaming.query.java import Java
from streaming.query.keeper import SparkKeeper
from tests.api.test_api import write_state

PORT = 15_002
SECONDS = 60.0
"""More than anything takes here."""


class ToyJava:
    """A JVM that listens and ends when a test says so."""

    def __init__(self, *, listens: bool) -> None:
        self.pid = os.getpid()
        self.rests = 0
        self._listens = listens
        self._end: asyncio.Future[tuple[str, Cause]] = asyncio.get_running_loop().create_future()

    async def listens(self) -> None:
        if not self._listens:
            await asyncio.Future()

    def end(self, reason: str, cause: Cause) -> None:
        if not self._end.done():
            self._end.set_result((reason, cause))

    async def ended(self) -> tuple[str, Cause]:
        return await asyncio.shield(self._end)

    async def rest(self) -> None:
        self.rests += 1

    async def stop(self) -> None:
        self.end("stopped", "other")


class Kept:
    """A keeper, and the JVMs that it has started."""

    def __init__(self, folder: Path, idle_seconds: float | None, start_seconds: float) -> None:
        self.application = QueryApplication(folder)
        self.started: list[ToyJava] = []
        self.listens = True
        self.refusal: Exception | None = None
        self.keeper = SparkKeeper(
            self._start, PORT, start_timeout_seconds=start_seconds, idle_seconds=idle_seconds
        )

    async def _start(self) -> Java:
        if self.refusal is not None:
            raise self.refusal
        self.started.append(ToyJava(listens=self.listens))
        return self.started[-1]

    async def use(self, seconds: float = SECONDS) -> "Held":
        return await Held.begin(self.application, seconds)

    async def reach(self, starts: int, phase: str) -> None:
        """Wait until it is in a phase of its life of that number."""
        keeper = self.keeper
        await asyncio.to_thread(
            await_condition,
            lambda: (keeper.starts, keeper.phase) == (starts, phase),
            f"start {starts}, {phase}",
            timeout_seconds=SECONDS,
        )


class Held:
    """A use, held by a thread as the API's are."""

    def __init__(self, application: QueryApplication, seconds: float) -> None:
        self._using = application.use(seconds)
        self.use: Use

    @classmethod
    async def begin(cls, application: QueryApplication, seconds: float) -> "Held":
        held = cls(application, seconds)
        held.use = await asyncio.to_thread(held._using.__enter__)
        return held

    async def ended(self) -> End | None:
        return await asyncio.to_thread(self.use.ended)

    def close(self) -> None:
        self._using.__exit__(None, None, None)


@asynccontextmanager
async def keeping(
    folder: Path, idle_seconds: float | None = 3_600.0, start_seconds: float = SECONDS
) -> AsyncIterator[Kept]:
    kept = Kept(folder, idle_seconds, start_seconds)
    await kept.keeper.open(folder / SOCKET_FILE)
    running = asyncio.create_task(kept.keeper.run())
    try:
        yield kept
    finally:
        running.cancel()
        await asyncio.wait((running,))
        kept.keeper.close()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


pytestmark = pytest.mark.anyio


async def test_it_starts_with_the_first_use_and_serves_all(tmp_path: Path) -> None:
    async with keeping(tmp_path) as kept:
        assert (kept.keeper.phase, kept.started) == ("resting", [])
        first, second = await asyncio.gather(kept.use(), kept.use())
        assert first.use.port == second.use.port == PORT
        assert (kept.keeper.phase, kept.keeper.uses, len(kept.started)) == ("running", 2, 1)
        assert oct((tmp_path / SOCKET_FILE).stat().st_mode & 0o777) == "0o600"
        for held in (first, second):
            held.close()


async def test_it_ends_when_nobody_uses_it_and_starts_again(tmp_path: Path) -> None:
    async with keeping(tmp_path, idle_seconds=0.05) as kept:
        held = await kept.use()
        await asyncio.sleep(0.2)  # a use that says nothing is one all the same
        assert kept.keeper.phase == "running"
        held.close()
        await kept.reach(1, "resting")
        assert dict(kept.keeper.ends) == {"idle": 1}
        assert kept.started[-1].rests == 1, "it may write the archive of its classes"
        (await kept.use()).close()
        assert (kept.keeper.starts, len(kept.started)) == (2, 2)


async def test_whoever_uses_it_hears_how_it_ended(tmp_path: Path) -> None:
    async with keeping(tmp_path) as kept:
        alone = await kept.use()
        kept.started[-1].end("its heap was full", "memory")
        assert await alone.ended() == End("its heap was full", "memory", was_alone=True)
        first, second = await kept.use(), await kept.use()
        kept.started[-1].end("it was killed by signal 9", "other")
        for held in (first, second):
            end = End("it was killed by signal 9", "other", was_alone=False)
            assert await held.ended() == end
        assert kept.keeper.ends == {"memory": 1, "other": 1}
        third = await kept.use()
        assert (len(kept.started), kept.keeper.uses) == (3, 1), "as if nothing had been"
        for held in (alone, first, second, third):
            held.close()


async def test_who_has_a_query_that_does_not_stop_ends_it_for_all(tmp_path: Path) -> None:
    async with keeping(tmp_path) as kept:
        first, second = await kept.use(), await kept.use()
        first.use.end("a query did not stop within 10 s")
        for held in (first, second):
            end = await held.ended()
            assert end == End("a query did not stop within 10 s", "asked", was_alone=False)
            held.close()
        assert not kept.started[-1].rests
        (await kept.use()).close()


async def test_a_start_that_fails_is_told_and_tried_again_for_the_next(tmp_path: Path) -> None:
    async with keeping(tmp_path, start_seconds=1.0) as kept:
        kept.refusal = OperationalError("no java on the path")
        with pytest.raises(NotReady, match="does not start: no java on the path"):
            await kept.use()
        assert kept.keeper.trouble == "no java on the path"
        kept.refusal, kept.listens = None, False
        with pytest.raises(NotReady, match=r"not ready after 1 s"):
            await kept.use()
        assert len(kept.started) == 1, "nobody wants it any more"
        kept.listens = True
        (await kept.use()).close()
        assert kept.keeper.trouble == ""


async def test_nobody_waits_for_longer_than_he_wants_to(tmp_path: Path) -> None:
    async with keeping(tmp_path) as kept:
        kept.listens = False
        with pytest.raises(NotReady, match="is starting for queries: try again"):
            await kept.use(seconds=0.5)
        unwanted = kept.application.use(SECONDS, lambda: True)
        with pytest.raises(Unwanted):
            await asyncio.to_thread(unwanted.__enter__)


async def test_it_may_be_there_before_anybody_asks(tmp_path: Path) -> None:
    async with keeping(tmp_path, idle_seconds=None) as kept:
        await kept.reach(1, "running")
        kept.started[-1].end("it was killed by signal 9", "other")
        await kept.reach(2, "running")


async def test_who_only_looks_whether_it_is_there_starts_nothing(tmp_path: Path) -> None:
    async with keeping(tmp_path, idle_seconds=0.5) as kept:
        connect(tmp_path / SOCKET_FILE, SECONDS).close()
        with connect(tmp_path / SOCKET_FILE, SECONDS) as looking:
            held = await kept.use()  # who looks came before
            assert (kept.keeper.uses, kept.keeper.starts) == (1, 1)
            assert held.use.java_pid == os.getpid()
            held.close()
            await kept.reach(1, "resting")
            looking.close()


async def test_what_is_no_question_ends_its_use_alone(tmp_path: Path) -> None:
    async with keeping(tmp_path) as kept:
        good, bad = await kept.use(), await kept.use()
        bad.use._connection.sendall(b"{}\n")
        assert await bad.ended() == End("the query application has ended", "other", was_alone=False)
        assert (kept.keeper.phase, kept.keeper.uses) == ("running", 1)
        good.close()
        bad.close()


def test_where_there_is_none_that_is_said_at_once(tmp_path: Path) -> None:
    write_state(tmp_path, healthy=True)
    with (
        pytest.raises(OperationalError, match="no query application answers at"),
        QueryApplication(tmp_path).use(SECONDS),
    ):
        pass


@pytest.fixture
def supervised(tmp_path: Path) -> Path:
    """A data directory whose supervisor starts a keeper, which is not there yet."""
    state = write_state(tmp_path, healthy=True)
    process = ProcessReport(NAME, os.getpid(), healthy=False, detail="starting")
    state = replace(state, processes=(*state.processes, process))
    replace_file(tmp_path / STATE_FILE, state.to_json())
    return tmp_path


def test_a_keeper_that_was_killed_is_waited_for(supervised: Path) -> None:
    with (
        pytest.raises(NotReady, match="is being started again"),
        QueryApplication(supervised).use(0.2),
    ):
        pass
    is_used = threading.Event()

    async def come_late() -> None:
        async with keeping(supervised) as kept:
            await kept.reach(1, "running")
            await asyncio.to_thread(is_used.wait, SECONDS)

    thread = threading.Thread(target=asyncio.run, args=(come_late(),))
    thread.start()
    with QueryApplication(supervised).use(SECONDS) as use:
        assert use.port == PORT
    is_used.set()
    thread.join(SECONDS)
