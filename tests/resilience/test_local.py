"""Parts of a system that starts as a whole are struck with all that they have started."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from resilience.definition import load
from resilience.local import LocalTarget

SYSTEM = """
[target]
title = "a part with a child"
status = "works"

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


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - the kernel tells nobody
            await asyncio.sleep(0.01)


def test_what_a_part_has_started_stands_still_and_dies_with_it(tmp_path: Path) -> None:
    async def main() -> None:
        (tmp_path / "system.toml").write_text(SYSTEM)
        target = LocalTarget(load(str(tmp_path / "system.toml")))
        await target.start()
        try:
            pids = [int((target.folder / name).read_text()) for name in ("pid", "child")]
            await target.pause("engine")
            await eventually(lambda: [*map(state, pids)] == ["T", "T"])
            await target.resume("engine")
            await eventually(lambda: [*map(state, pids)] == ["S", "S"])
            await target.kill("engine")
            await eventually(lambda: [*map(state, pids)] == ["-", "-"])
        finally:
            await target.stop()

    asyncio.run(main())
