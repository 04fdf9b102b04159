"""The child process, and what becomes of requests when it or its caller is gone."""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import uvloop

from ingest.gateway.lake.exchange import HistoryPage, TableError
from ingest.gateway.lake.reader import LakeReader
from ingest.gateway.store.retained import RetainedRow
from mqlake.tables.catalogue import MESSAGES, RETAINED
from tests.ingest.gateway.lake.tables import append
from tests.waiting import until

pytestmark = pytest.mark.programs

DEADLINE_SECONDS = 20.0
MESSAGE = {
    "id": "00" * 16,
    "tenant": "default",
    "topic": "a/b",
    "payload": b"1",
    "qos": 1,
    "retain": False,
    "dup": False,
    "client_id": "c1",
    "protocol_level": 4,
    "origin": "local/gateway-1",
    "ts": 1_700_000_000_123_000,
    "log_partition": 0,
}
RANGES = {0: (0, 100)}


def with_messages(data_dir: Path, count: int = 3) -> Path:
    append(data_dir, MESSAGES, [{**MESSAGE, "log_offset": offset} for offset in range(count)])
    return data_dir


def run(scenario: Callable[[LakeReader], Awaitable[None]], data_dir: Path, **more: Any) -> None:
    async def with_reader() -> None:
        reader = LakeReader(data_dir, **more)
        try:
            await scenario(reader)
        finally:
            await reader.close()
        assert children() == []

    asyncio.run(with_reader())


def children() -> list[psutil.Process]:
    found = []
    for child in psutil.Process().children():
        with suppress(psutil.Error):  # it has just ended
            if "ingest.gateway.lake.worker" in child.cmdline():
                found.append(child)
    return found


def test_one_child_answers_request_after_request(tmp_path: Path) -> None:
    async def scenario(reader: LakeReader) -> None:
        assert children() == []
        pages = await asyncio.gather(
            *(reader.messages("default", {0: (start, 100)}, ["a/#"]) for start in range(3))
        )
        assert [len(page.records) for page in pages] == [3, 2, 1]
        assert all(page.next_offsets == {0: 3} for page in pages)
        assert len(children()) == 1
        rows: list[RetainedRow] = []

        async def take(some: list[RetainedRow]) -> None:
            rows.extend(some)

        assert await reader.retained([0, 1, 2, 3], take) == {0: 5}
        assert [row.topic_name for row in rows] == ["r"]
        assert len(children()) == 1

    with_messages(tmp_path)
    row = {**MESSAGE, "topic": "r", "log_offset": 1}
    append(tmp_path, RETAINED, [row], next_offsets={0: 5})
    run(scenario, tmp_path)


def test_it_serves_uvloop_too(tmp_path: Path) -> None:
    async def scenario() -> None:
        reader = LakeReader(tmp_path)
        page = await reader.messages("default", RANGES, ["a/b"])
        assert len(page.records) == 3
        await reader.close()
        assert children() == []

    with_messages(tmp_path)
    uvloop.run(scenario())


def test_empty_ranges_and_no_filters_ask_nobody(tmp_path: Path) -> None:
    async def scenario(reader: LakeReader) -> None:
        assert await reader.messages("default", {}, ["#"]) == HistoryPage([], {}, has_more=False)
        page = await reader.messages("default", {0: (4, 10), 1: (9, 3)}, [])
        assert page == HistoryPage([], {0: 10, 1: 9}, has_more=False)
        page = await reader.messages("default", {0: (4, 4)}, ["#"])
        assert page == HistoryPage([], {0: 4}, has_more=False)
        assert children() == []

    run(scenario, tmp_path)


def test_without_tables_there_is_nothing(tmp_path: Path) -> None:
    async def scenario(reader: LakeReader) -> None:
        page = await reader.messages("default", {0: (4, 10), 1: (3, 3)}, ["#"])
        assert page == HistoryPage([], {0: 4, 1: 3}, has_more=False)

        async def take(_rows: list[RetainedRow]) -> None:
            raise AssertionError

        assert await reader.retained([0, 1, 2, 3], take) == {}

    run(scenario, tmp_path)


def test_an_idle_child_is_let_go_and_another_started(tmp_path: Path) -> None:
    async def scenario(reader: LakeReader) -> None:
        for _ in range(2):
            assert len((await reader.messages("default", RANGES, ["#"])).records) == 3
            await until(lambda: not children())

    run(scenario, with_messages(tmp_path), idle_seconds=0.01)


def test_a_child_that_dies_costs_its_request_and_no_other(tmp_path: Path) -> None:
    async def scenario(reader: LakeReader) -> None:
        asked = asyncio.create_task(reader.messages("default", RANGES, ["#"]))
        waits = asyncio.create_task(reader.messages("default", RANGES, ["#"]))
        await until(lambda: len(children()) == 1)
        children()[0].kill()
        with pytest.raises(TableError, match="has ended"):
            await asked
        assert len((await waits).records) == 3

    run(scenario, with_messages(tmp_path))


def test_a_child_that_dies_between_requests_costs_none(tmp_path: Path) -> None:
    async def scenario(reader: LakeReader) -> None:
        for _ in range(3):
            assert len((await reader.messages("default", RANGES, ["#"])).records) == 3
            (child,) = children()
            child.kill()

    run(scenario, with_messages(tmp_path))


def test_a_child_that_does_not_answer_is_killed(tmp_path: Path) -> None:
    async def scenario(reader: LakeReader) -> None:
        await reader.messages("default", RANGES, ["#"])
        (child,) = children()
        child.send_signal(signal.SIGSTOP)
        with pytest.MonkeyPatch.context() as hurried:  # a child that starts has all its time
            hurried.setattr(reader, "_timeout_seconds", 1.0)
            with pytest.raises(TableError, match="no answer for 1 s"):
                await reader.messages("default", RANGES, ["#"])
        assert len((await reader.messages("default", RANGES, ["#"])).records) == 3

    run(scenario, with_messages(tmp_path))


def test_a_request_given_up_leaves_no_answer_to_the_next(tmp_path: Path) -> None:
    async def scenario(reader: LakeReader) -> None:
        async def refuse(_rows: list[RetainedRow]) -> None:
            raise ValueError("too much")

        with pytest.raises(ValueError, match="too much"):
            await reader.retained([0, 1, 2, 3], refuse)
        asked = asyncio.create_task(reader.messages("default", RANGES, ["#"]))
        await until(lambda: len(children()) == 1)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        page = await reader.messages("default", {0: (1, 2)}, ["#"])
        assert [record.offset for record in page.records] == [1]

    with_messages(tmp_path)
    row = {**MESSAGE, "topic": "r", "log_offset": 1}
    append(tmp_path, RETAINED, [row], next_offsets={0: 5})
    run(scenario, tmp_path)


def test_closing_ends_a_request(tmp_path: Path) -> None:
    async def scenario(reader: LakeReader) -> None:
        asked = asyncio.create_task(reader.messages("default", RANGES, ["#"]))
        await until(lambda: len(children()) == 1)
        children()[0].suspend()  # else it may answer first
        await reader.close()
        with pytest.raises(TableError):
            await asked
        with pytest.raises(TableError, match="was closed"):
            await reader.messages("default", RANGES, ["#"])

    run(scenario, with_messages(tmp_path))


def test_closing_ends_a_child_that_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start = asyncio.create_subprocess_exec

    async def scenario(reader: LakeReader) -> None:
        async def start_and_close(*command: Any, **options: Any) -> Process:
            process = await start(*command, **options)
            await reader.close()
            return process

        monkeypatch.setattr(asyncio, "create_subprocess_exec", start_and_close)
        with pytest.raises(TableError, match="was closed"):
            await reader.messages("default", RANGES, ["#"])
        assert not children()

    run(scenario, with_messages(tmp_path))


def test_a_table_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    async def scenario(reader: LakeReader) -> None:
        with pytest.raises(TableError, match=r"table messages .* cannot be read"):
            await reader.messages("default", RANGES, ["#"])

    with_messages(tmp_path)
    for file in (tmp_path / "tables" / "messages").glob("*.parquet"):
        file.unlink()
    run(scenario, tmp_path)


def test_the_child_does_not_outlive_a_gateway_that_is_killed(tmp_path: Path) -> None:
    async def scenario() -> None:
        program = (
            "import asyncio, sys\n"
            "from pathlib import Path\n"
            "from ingest.gateway.lake.reader import LakeReader\n"
            "async def main():\n"
            "    reader = LakeReader(Path(sys.argv[1]))\n"
            "    await reader.messages('default', {0: (0, 9)}, ['#'])\n"
            "    print('asked', flush=True)\n"
            "    await asyncio.Future()\n"
            "asyncio.run(main())\n"
        )
        gateway = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            program,
            str(tmp_path),
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        assert gateway.stdout is not None
        assert await gateway.stdout.readline() == b"asked\n"
        (child,) = psutil.Process(gateway.pid).children()
        gateway.kill()
        await gateway.wait()
        await until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)

    asyncio.run(scenario())
