"""Targets as TOML, and the processes of a target on this machine.

A target's file says how its parts are started and which addresses they have. In it stand `{dir}`
for a folder of the run, `{port:NAME}` for a free port of that name, `{user}`, `{python}`, and
`{root}` for the folder that holds the package.
"""

import asyncio
import contextlib
import getpass
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from resilience import drivers
from resilience.drivers.frames import Client
from resilience.errors import ScenarioError, TargetError
from resilience.history import Writer
from resilience.proxy import Proxy
from resilience.target import Hold

START_SECONDS: Final = 60.0
STOP_SECONDS: Final = 30.0
POLL_SECONDS: Final = 0.01
STATUS_SECONDS: Final = 0.2
CONSECUTIVE: Final = 3
"""So many ports in a row are free for each name."""

FOLDER: Final = Path(__file__).parent / "targets"
ROOT: Final = Path(__file__).parent.parent

Command = Sequence[str]


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a target.

    Attributes:
        command: The tool starts it so; empty for a part of a system that starts as a whole.
        process: Its name in the answer of the system's `pids` command; such a part is started
            again by the system itself.
        port: Where clients connect; empty for a part that has no clients.
    """

    command: tuple[str, ...] = ()
    process: str = ""
    port: str = ""


@dataclass(frozen=True, slots=True)
class System:
    """How a target is started and stopped as a whole.

    Attributes:
        pids: Prints JSON with `processes`, each with `name` and `pid`.
    """

    start: tuple[str, ...] = ()
    stop: tuple[str, ...] = ()
    pids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Definition:
    """A target as its file has it.

    Attributes:
        status: "works"; "written", if nobody has run it yet; "template", if it is to be completed.
        note: Where the broker is to be had.
    """

    name: str
    title: str
    status: str
    note: str
    promises: Mapping[str, Any]
    parts: Mapping[str, Part]
    system: System = field(default_factory=System)
    files: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    version: tuple[str, ...] = ()
    text: str = ""


def names() -> list[str]:
    """Return the targets that come with the tool."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def load(name: str) -> Definition:
    """Read a target by its name, or by a path to a file of one's own.

    Raises:
        ScenarioError: There is none, or it says something that is not known.
    """
    path = Path(name) if name.endswith(".toml") else FOLDER / f"{name}.toml"
    try:
        text = path.read_text(encoding="utf-8")
        data = tomllib.loads(text)
        about = data.pop("target")
        parts = {
            part: Part(**{**values, "command": tuple(values.get("command", ()))})
            for part, values in data.pop("parts", {}).items()
        }
        system = System(**{key: tuple(value) for key, value in data.pop("system", {}).items()})
        return Definition(
            name=path.stem,
            title=about.pop("title"),
            status=about.pop("status"),
            note=about.pop("note", ""),
            version=tuple(about.pop("version", ())),
            promises=data.pop("promises", {}),
            parts=parts,
            system=system,
            text=text,
            **data,
        )
    except FileNotFoundError:
        raise ScenarioError(f"no target {name!r}; there are {', '.join(names())}") from None
    except (tomllib.TOMLDecodeError, TypeError, ValueError, KeyError) as exc:
        raise ScenarioError(f"{path}: {exc!r}") from exc


def version_of(definition: Definition) -> str:
    """Return the first line that holds a version number of the program, else "unknown"."""
    if not definition.version:
        return "unknown"
    command = [part.format(root=ROOT, python=sys.executable) for part in definition.version]
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
        for line in (done.stdout + done.stderr).splitlines():
            if re.search(r"\d+\.\d+", line):
                return line.strip()
    return "unknown"


class LocalTarget:
    """A target whose parts are processes of this machine; see `target.Target`.

    Args:
        through_proxy: Put a proxy of the tool before each address, for faults of the network.
    """

    def __init__(self, definition: Definition, *, through_proxy: bool = False) -> None:
        if definition.status == "template":
            raise TargetError(f"{definition.name} is a template, not run here: {definition.note}")
        self.name = definition.name
        self.promises = definition.promises
        self.parts = tuple(definition.parts)
        self.nodes = tuple(name for name, part in definition.parts.items() if part.port)
        self._definition = definition
        self._through_proxy = through_proxy
        self._addresses: dict[str, tuple[str, int]] = {}
        self._direct: dict[str, tuple[str, int]] = {}
        self._proxies: dict[str, Proxy] = {}
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._ports: dict[str, int] = {}
        self._ended: dict[str, int] = {}
        """The former process of a part that its system starts again."""
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def client(
        self,
        name: str,
        driver: str,
        history: Writer,
        *,
        on_lost: Callable[[], None],
        hold: Hold | None,
    ) -> Client:
        return drivers.make(driver, name, history, self._addresses, on_lost=on_lost, hold=hold)

    @property
    def folder(self) -> Path:
        if self._folder is None:
            raise TargetError(f"{self.name} is not started")
        return Path(self._folder.name)

    def _fill(self, text: str) -> str:
        def value(match: re.Match[str]) -> str:
            key = match[1]
            if key.startswith("port:"):
                return str(self._port(key[5:]))
            known = {
                "dir": str(self.folder),
                "user": getpass.getuser(),
                "root": str(ROOT),
                "python": sys.executable,
            }
            return known[key]

        return re.sub(r"\{(dir|user|root|python|port:[\w+-]+)\}", value, text)

    def _port(self, name: str) -> int:
        """Return the port of this name: a free one at its first use, then the same.

        `mqtt+1` is the port after that of `mqtt`.
        """
        name, _, further = name.partition("+")
        if name not in self._ports:
            self._ports[name] = _free_port()
        return self._ports[name] + int(further or 0)

    async def start(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix=f"resilience-{self.name}-")
        try:
            for name, text in self._definition.files.items():
                (self.folder / name).write_text(self._fill(text), encoding="utf-8")
            for name, part in self._definition.parts.items():
                if part.port:
                    self._direct[name] = ("127.0.0.1", int(self._fill(part.port)))
            if self._definition.system.start:
                await self._command(self._definition.system.start, 300)
            for name in self.parts:
                await self.launch(name)
            for name, address in self._direct.items():
                self._addresses[name] = address
                if self._through_proxy:
                    proxy = self._proxies[name] = Proxy(*address)
                    self._addresses[name] = ("127.0.0.1", await proxy.start())
        except BaseException:
            await self.stop()
            raise

    async def _command(self, command: Command, seconds: float) -> str:
        """Run a command of the target to its end; return what it printed."""
        words = [self._fill(word) for word in command]
        with (self.folder / "commands.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log
            )
            try:
                async with asyncio.timeout(seconds):
                    out, _ = await process.communicate()
            except TimeoutError:
                process.kill()
                await process.wait()
                raise TargetError(f"{' '.join(words)}: not done after {seconds:g} s") from None
        if process.returncode:
            raise TargetError(f"{' '.join(words)}: exit code {process.returncode}{self._log()}")
        return out.decode(errors="replace")

    def _log(self) -> str:
        """Return the end of the logs, for messages of errors."""
        ends = [
            f"; {path.name}: {path.read_text(errors='replace')[-400:].strip()}"
            for path in sorted(self.folder.glob("*.log"))
        ]
        return "".join(ends)

    async def stop(self) -> None:
        for proxy in self._proxies.values():
            await proxy.stop()
        self._proxies.clear()
        for process in self._processes.values():
            await _end(process)
        self._processes.clear()
        if self._folder is not None:
            if self._definition.system.stop:
                with contextlib.suppress(TargetError):
                    await self._command(self._definition.system.stop, 120)
            self._folder.cleanup()
            self._folder = None

    async def _pid(self, part: str) -> int:
        process = self._processes.get(part)
        if process is not None:
            return process.pid
        pid = await self._pid_of_system(part)
        if pid is None:
            raise TargetError(f"{part} of {self.name} is not running")
        return pid

    async def _pid_of_system(self, part: str) -> int | None:
        name = self._definition.parts[part].process
        answer = json.loads(await self._command(self._definition.system.pids, 30))
        for row in answer["processes"]:
            if row["name"] == name and row["pid"]:
                return int(row["pid"])
        return None

    async def kill(self, part: str) -> None:
        await self._end_part(part, signal.SIGKILL)

    async def terminate(self, part: str) -> None:
        await self._end_part(part, signal.SIGTERM)

    async def _signal(self, part: str, number: signal.Signals) -> int:
        pid = await self._pid(part)
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            raise TargetError(f"{part} of {self.name} is not running") from None
        return pid

    async def _end_part(self, part: str, number: signal.Signals) -> None:
        """Signal a part, and wait for its end if its process is ours."""
        pid = await self._signal(part, number)
        process = self._processes.get(part)
        if process is None:
            self._ended[part] = pid
            return
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await process.wait()
        except TimeoutError:
            raise TargetError(f"{part} has not ended after {STOP_SECONDS:g} s") from None
        del self._processes[part]

    async def launch(self, part: str) -> None:
        if part in self._processes:
            return
        definition = self._definition.parts[part]
        if definition.command:
            words = [self._fill(word) for word in definition.command]
            with (self.folder / f"{part}.log").open("ab") as log:
                self._processes[part] = await asyncio.create_subprocess_exec(
                    *words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder
                )
        former = self._ended.pop(part, None)
        if former is not None:
            await self._await_another(part, former)
        if part in self._direct:
            await self._listening(part)

    async def _await_another(self, part: str, former: int) -> None:
        """Wait until the system has started a part again."""
        loop = asyncio.get_running_loop()
        end = loop.time() + START_SECONDS
        while await self._pid_of_system(part) in (None, former):
            if loop.time() > end:
                raise TargetError(f"{part} of {self.name} was not started again")
            await asyncio.sleep(STATUS_SECONDS)

    async def _listening(self, part: str) -> None:
        """Wait until a part takes connections."""
        loop = asyncio.get_running_loop()
        end = loop.time() + START_SECONDS
        while True:
            process = self._processes.get(part)
            if process is not None and process.returncode is not None:
                raise TargetError(f"{part} ended with code {process.returncode}{self._log()}")
            try:
                _, writer = await asyncio.open_connection(*self._direct[part])
            except OSError:
                if loop.time() > end:
                    raise TargetError(f"{part} takes no connections{self._log()}") from None
                await asyncio.sleep(POLL_SECONDS)
            else:
                writer.transport.abort()
                return

    async def pause(self, part: str) -> None:
        await self._signal(part, signal.SIGSTOP)

    async def resume(self, part: str) -> None:
        await self._signal(part, signal.SIGCONT)

    def network(self, part: str) -> Proxy:
        proxy = self._proxies.get(part)
        if proxy is None:
            raise TargetError(f"no proxy before {part} of {self.name}")
        return proxy

    async def set_right(
        self, client_id: str, action: str, topic_filter: str, *, allowed: bool
    ) -> None:
        raise TargetError(f"{self.name} does not say how rights are changed")


def _free_port() -> int:
    """Return a port that is free together with the ones after it.

    Below the range from which Linux takes the ports of outgoing connections (32768 on).
    """
    for _ in range(200):
        base = random.randrange(20_000, 32_760)  # noqa: S311 - not a secret
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(base, base + CONSECUTIVE):
                listener = stack.enter_context(socket.socket())
                listener.bind(("127.0.0.1", port))
            return base
    raise TargetError("no free ports between 20000 and 32760")


async def _end(process: asyncio.subprocess.Process) -> None:
    """End a process of ours, by force if it does not go."""
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGCONT)
        process.terminate()
    try:
        async with asyncio.timeout(STOP_SECONDS):
            await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
