"""A supervisor over toy programs, run by `test_supervisor.py`: `python toy_system.py FOLDER PARTS`.

PARTS is a JSON object: name -> source of a Python program. A program is healthy while the file
`<name>.well` exists; each start appends its pid to `<name>.pids`, each orderly stop a line to
`stops`. One that calls `beat` gives a sign of life. A name that ends on `-next` is what is started
beside the part of that name. What is named `lake` starts after the router, and is not waited for.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

from launcher.child import ChildProgram
from launcher.planning.parts import NEXT, Beside, Part, PartHealth
from launcher.progress import PlainProgress
from launcher.supervision.requests import Requests
from launcher.supervision.supervisor import Interrupted, Supervisor
from mqlake.errors import MqlakeError
from mqlake.processes.status import STATE_FILE, SystemState, boot_id, replace_file, start_ticks

_PROLOGUE = """
import os, pathlib, signal, subprocess, sys, time
name = {name!r}
def stop(*_):
    with open("stops", "a") as file: file.write(name + "\\n")
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
with open(name + ".pids", "a") as file: file.write(str(os.getpid()) + "\\n")
def wait_for(file):
    while not os.path.exists(file):
        time.sleep(0.01)

def serve():
    pathlib.Path(name + ".well").touch()
    while True: signal.pause()
def beat():
    new = name + ".new"
    pathlib.Path(new).write_text(f"{{os.getpid()}} {{time.time()}}")
    os.replace(new, name + ".beat")
"""


def main() -> int:
    folder = Path(sys.argv[1])
    sources: dict[str, str] = json.loads(sys.argv[2])

    def program(name: str, source: str) -> ChildProgram:
        command = (sys.executable, "-c", _PROLOGUE.format(name=name) + source)
        output = folder / f"{name}.out"
        return ChildProgram(
            name, command, folder, {**os.environ, "PYTHONFAULTHANDLER": "1"}, output, output, 2.0
        )

    def beat(name: str, pid: int) -> float | None:
        try:
            written_by, at = (folder / f"{name}.beat").read_text().split()
        except FileNotFoundError:
            return None
        return float(at) if int(written_by) == pid else 0.0

    def probe(name: str) -> Callable[[int], PartHealth]:
        def look(pid: int) -> PartHealth:
            well = (folder / f"{name}.well").exists()
            return PartHealth(well, "well" if well else "not well yet", beat=beat(name, pid))

        return look

    def part(name: str, source: str) -> Part:
        kind, following = name.partition("-")[0], NEXT.format(name)
        beside = None
        if following in sources:
            beside = Beside(program(following, sources[following]), probe(following))
        return Part(
            kind,
            program(name, source),
            probe(name),
            needs_log_topics=kind == "gateway",
            after="router" if kind == "lake" else None,
            awaited=kind != "lake",
            beside=beside,
        )

    ticks = start_ticks(os.getpid())
    assert ticks is not None
    state = SystemState(
        os.getpid(), ticks, boot_id(), 0.0, 0.0, "starting", "127.0.0.1:1", 2, "http://x", 3, ()
    )
    supervisor = Supervisor(
        [
            part(name, source)
            for name, source in sources.items()
            if name != "topics" and not name.endswith("-next")
        ],
        program("topics", sources.get("topics", "")),
        state,
        PlainProgress(),
        ready_timeout_seconds=float(os.environ.get("READY_TIMEOUT", "60")),
        write_state=lambda new: replace_file(folder / STATE_FILE, new.to_json()),
        requests=Requests(folder / "restart"),
        hang_seconds=float(os.environ.get("HANG_SECONDS", "0")),
    )
    try:
        supervisor.run("ready now")
    except MqlakeError as exc:
        sys.stderr.write(f"failed: {exc}\n")
        return 1
    except Interrupted:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
