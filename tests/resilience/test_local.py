"""Parts of a system that starts as a whole are struck with all that they have started."""

import asyncio
import resource
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from resilience.definition import load
from resilience.errors import TargetError
from resilience.faults import FAULTS
from resilience.local import LocalTarget
from resilience.processes import ROOM_BYTES
from tests.waiting import until

pytestmark = pytest.mark.programs

SYSTEM = """
[target]
title = "a part with a child"

[system]
start = ["/bin/sh", "-c", '''
setsid sh -c 'sleep 600 & echo $! > {dir}/child; echo $$ > {dir}/pid; wait' > /dev/null 2>&1 &
while [ ! -s {dir}/pid ]; do sleep 0.01; done
''']
pids = ["/bin/sh", "-c", '''
echo '{"processes": [{"name": "engine", "pid": '$(cat {dir}/pid)'}]}'
exit 1
''']

[parts.engine]
process = "engine"
"""


def state(pid: int) -> str:
    """Return the letter of a process's state; `-` for one that is gone, or is only a name."""
    try:
        letter = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except FileNotFoundError:
        return "-"
    return "-" if letter == "Z" else letter


def test_what_a_part_has_started_stands_still_and_dies_with_it(tmp_path: Path) -> None:
    async def main() -> None:
        target = defined(tmp_path / "system.toml", SYSTEM)
        await target.start()
        try:
            pids = [int((target.folder / name).read_text()) for name in ("pid", "child")]
            await target.pause("engine")
            await until(lambda: [*map(state, pids)] == ["T", "T"])
            await target.resume("engine")
            await until(lambda: [*map(state, pids)] == ["S", "S"])
            await target.kill("engine")
            await until(lambda: [*map(state, pids)] == ["-", "-"])
        finally:
            await target.stop()

    asyncio.run(main())


KEPT = """
[target]
title = "a part that its system starts again"

[system]
start = ["/bin/sh", "-c", '''
rm -f {dir}/engine
setsid sh {dir}/keeper.sh > /dev/null 2>&1 &
while [ ! -s {dir}/engine ]; do sleep 0.01; done
''']
stop = ["/bin/sh", "-c", "kill -9 $(cat {dir}/supervisor {dir}/engine)"]
pids = ["/bin/sh", "-c", '''
echo '{"processes": [{"name": "supervisor", "pid": '$(cat {dir}/supervisor)'},'
echo '{"name": "engine", "pid": '$(cat {dir}/engine)'}]}'
''']
keeper = "supervisor"

[parts.engine]
process = "engine"
second = ["/bin/sh", "-c", "echo it is there already; exit SECOND"]
refusal = "it is there"

[files]
"keeper.sh" = '''
echo $$ > {dir}/supervisor
while true; do
    echo started >> {dir}/starts
    setsid sh {dir}/engine.sh
done
'''
"engine.sh" = '''
echo $$ > {dir}/engine-$$
mv {dir}/engine-$$ {dir}/engine
while true; do WORK; sleep 0.02; done
'''
"""
WRITES = "echo 0123456789012345678901234567890123456789 >> {dir}/written-$$"


def defined(path: Path, text: str) -> LocalTarget:
    """Return the target of a definition, which has the name of its file."""
    path.write_text(text)
    return LocalTarget(load(str(path)))


def kept(tmp_path: Path, work: str, second: int = 1) -> LocalTarget:
    return defined(
        tmp_path / "kept.toml", KEPT.replace("WORK", work).replace("SECOND", str(second))
    )


async def use(target: LocalTarget, test: Callable[[], Awaitable[None]]) -> None:
    await target.start()
    try:
        await test()
    finally:
        await target.stop()


def pid_of(target: LocalTarget, name: str) -> int:
    return int((target.folder / name).read_text())


def starts(target: LocalTarget) -> int:
    return len((target.folder / "starts").read_text().split())


def test_a_part_that_was_killed_is_away_until_it_is_launched(tmp_path: Path) -> None:
    target = kept(tmp_path, ":")

    async def test() -> None:
        keeper, former = pid_of(target, "supervisor"), pid_of(target, "engine")
        for end in (target.kill, target.terminate):
            await end("engine")
            await until(lambda: state(keeper) == "T")
            assert state(former) == "-"
            await target.launch("engine")
            await until(lambda: state(keeper) == "S")
            assert pid_of(target, "engine") != former
            former = pid_of(target, "engine")
        assert starts(target) == 3

    asyncio.run(use(target, test))


def test_a_crash_takes_everybody_and_all_is_started_again(tmp_path: Path) -> None:
    target = kept(tmp_path, ":")

    async def test() -> None:
        pids = [pid_of(target, name) for name in ("supervisor", "engine")]
        await FAULTS["crash"].strike(target, "engine", away_seconds=0.0)
        assert [*map(state, pids)] == ["-", "-"]
        again = [pid_of(target, name) for name in ("supervisor", "engine")]
        await until(lambda: [*map(state, again)] == ["S", "S"])
        assert starts(target) == 2

    asyncio.run(use(target, test))


def test_a_part_without_room_ends_and_comes_back_with_room(tmp_path: Path) -> None:
    target = kept(tmp_path, WRITES)

    async def test() -> None:
        former = pid_of(target, "engine")
        await FAULTS["file-limit"].strike(target, "engine")
        written = target.folder / f"written-{former}"
        assert written.stat().st_size == ROOM_BYTES
        again = target.folder / f"written-{pid_of(target, 'engine')}"
        await until(lambda: again.exists() and again.stat().st_size > ROOM_BYTES)

    asyncio.run(use(target, test))


def test_a_part_that_does_not_notice_that_it_has_no_room_is_told_of(tmp_path: Path) -> None:
    target = kept(tmp_path, ":")

    async def test() -> None:
        with pytest.raises(TargetError, match="engine of kept has not ended"):
            await FAULTS["file-limit"].strike(target, "engine", within_seconds=0.2)
        limits = resource.prlimit(pid_of(target, "engine"), resource.RLIMIT_FSIZE)
        assert limits == (resource.RLIM_INFINITY, resource.RLIM_INFINITY)

    asyncio.run(use(target, test))


def test_a_second_process_of_a_name_has_to_fail_and_to_say_why(tmp_path: Path) -> None:
    async def test(target: LocalTarget) -> None:
        await FAULTS["doubled-name"].strike(target, "engine")

    refused = kept(tmp_path, ":")
    asyncio.run(use(refused, lambda: test(refused)))
    taken = kept(tmp_path, ":", second=0)
    with pytest.raises(TargetError, match="the second engine: expected failure"):
        asyncio.run(use(taken, lambda: test(taken)))


RIGHTS = """
[rights]
denied = "no {action} of {filter} for {client_id}; "
others = "else all"
apply = ["/bin/sh", "-c", '''
test -e {dir}/heard || { touch {dir}/heard; exit 1; }
cp {dir}/rights {dir}/in-force
''']

[rights.actions]
publish = "write"
subscribe = "read"
"""


def test_rights_are_a_document_that_is_applied_until_all_have_heard(tmp_path: Path) -> None:
    target = defined(tmp_path / "kept.toml", KEPT.replace("WORK", ":") + RIGHTS)

    async def test() -> None:
        changes = [("a", "publish", False), ("b", "subscribe", False), ("a", "publish", True)]
        found = []
        for client, action, allowed in changes:
            await target.set_right(client, action, "t/#", allowed=allowed)
            found.append((target.folder / "in-force").read_text())
        assert found == [
            "no write of t/# for a; else all",
            "no write of t/# for a; no read of t/# for b; else all",
            "no read of t/# for b; else all",
        ]

    asyncio.run(use(target, test))


def test_a_target_that_does_not_say_how_rights_change_says_so(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="does not say how rights are changed"):
        asyncio.run(kept(tmp_path, ":").set_right("a", "publish", "t", allowed=False))


TENANTS = """
[tenants]
username = "{tenant}:{client_id}"
tenant = "{tenant} is {state}; "
is_open = "on"
is_shut = "off"
apply = ["/bin/sh", "-c", "cp {dir}/tenants {dir}/in-force"]
"""


def test_tenants_are_a_document_and_a_client_has_the_user_name_of_its_own(tmp_path: Path) -> None:
    target = defined(tmp_path / "kept.toml", KEPT.replace("WORK", ":") + TENANTS)

    async def test() -> None:
        await target.open_tenants(["red", "blue"])
        await target.set_tenant("red", is_open=False)
        assert (target.folder / "in-force").read_text() == "red is off; blue is on; "

    asyncio.run(use(target, test))
    assert target.username("red", "a") == "red:a"
    assert target.username("", "a") is None
    with pytest.raises(TargetError, match="does not say how tenants are changed"):
        asyncio.run(kept(tmp_path, ":").set_tenant("red", is_open=False))


SLOW_PART = """
[target]
title = "a system that needs a part which is slow to start"

[parts.log]
command = ["{python}", "-c", '''
import os, socket, time
while not os.path.exists("{dir}/asked"): time.sleep(0.01)
with socket.create_server(("{host}", {port:log})) as log:
    while True: log.accept()
''']
listens = "{host}:{port:log}"

[system]
start = ["{python}", "-c", "import socket; socket.create_connection(('{host}', {port:log}))"]
pids = ["/bin/echo", '{"processes": []}']
"""


def test_a_system_starts_when_the_parts_that_it_needs_are_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = defined(tmp_path / "slow.toml", SLOW_PART)
    connect = asyncio.open_connection

    async def ask(*address: Any) -> Any:
        (target.folder / "asked").touch()
        return await connect(*address)

    monkeypatch.setattr(asyncio, "open_connection", ask)
    asyncio.run(use(target, lambda: asyncio.sleep(0)))


def other_tasks() -> set[asyncio.Task[Any]]:
    """Return what runs beside the test: the task that starts a part again which ends by itself."""
    return asyncio.all_tasks() - {asyncio.current_task()}


RESTARTS = """
[target]
title = "a part that ends by itself once"

[parts.engine]
command = ["/bin/sh", "-c", '''
echo $$ >> {dir}/starts
test $(wc -l < {dir}/starts) = 1 || exec sleep 600
''']
restarts = true
"""


def test_a_part_that_ends_by_itself_is_started_again_one_that_is_struck_is_not(
    tmp_path: Path,
) -> None:
    target = defined(tmp_path / "restarts.toml", RESTARTS)

    async def is_known() -> bool:
        """Tell whether the target has the process that wrote the last line."""
        file = target.folder / "starts"
        pids = file.read_text().split() if file.exists() else []
        return len(pids) == 2 and int(pids[-1]) in await target.pids()

    async def test() -> None:
        await until(is_known)
        others = other_tasks()
        await target.kill("engine")
        await asyncio.wait(others)
        assert await target.pids() == []
        assert starts(target) == 2
        await target.launch("engine")
        await until(lambda: starts(target) == 3)

    asyncio.run(use(target, test))


def test_a_part_that_is_struck_while_it_is_started_again_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = defined(tmp_path / "restarts.toml", RESTARTS)
    create = asyncio.create_subprocess_exec
    made: list[asyncio.subprocess.Process] = []
    is_struck = asyncio.Event()

    async def slowly(*words: Any, **more: Any) -> asyncio.subprocess.Process:
        made.append(await create(*words, **more))
        if len(made) == 2:
            await is_struck.wait()
        return made[-1]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", slowly)

    async def test() -> None:
        await until(lambda: len(made) == 2)
        others = other_tasks()
        await target.kill("engine")
        is_struck.set()
        await asyncio.wait(others)
        assert made[1].returncode is not None
        assert await target.pids() == []

    asyncio.run(use(target, test))


FILLED = KEPT.replace(
    'process = "engine"\n',
    """process = "engine"
fill = ["/bin/sh", "-c", "echo full >> {dir}/told"]
empty = ["/bin/sh", "-c", "echo empty >> {dir}/told"]
expire = ["/bin/sh", "-c", "echo gone >> {dir}/told"]
""",
)


def test_a_log_is_full_and_what_waits_goes_as_the_target_says(tmp_path: Path) -> None:
    text = FILLED.replace("WORK", ":").replace("SECOND", "1")
    target = defined(tmp_path / "filled.toml", text)

    async def test() -> None:
        former = pid_of(target, "engine")
        await FAULTS["log-full"].strike(target, "engine", seconds=0.0)
        await FAULTS["outlive"].strike(target, "engine", after_seconds=0.0, away_seconds=0.0)
        assert (target.folder / "told").read_text().split() == ["full", "empty", "gone"]
        assert pid_of(target, "engine") != former

    asyncio.run(use(target, test))


def test_a_target_that_does_not_say_how_its_log_is_filled_says_so(tmp_path: Path) -> None:
    target = kept(tmp_path, ":")

    async def test() -> None:
        with pytest.raises(TargetError, match="how the log of engine is filled"):
            await FAULTS["log-full"].strike(target, "engine", seconds=0.0)
        await FAULTS["outlive"].strike(target, "engine", after_seconds=0.0, away_seconds=0.0)

    asyncio.run(use(target, test))
