"""The processes of a target on this machine."""

import asyncio
import contextlib
import getpass
import json
import random
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from resilience import drivers
from resilience.definition import MACHINE, ROOT, Definition
from resilience.drivers.frames import FrameClient
from resilience.errors import TargetError
from resilience.history import Writer
from resilience.machines.machine import CLOCK, DISK, LOOPBACK, PACKETS, PROXY, LocalMachine
from resilience.machines.switch import Switch
from resilience.ports import free_port
from resilience.processes import (
    PartKeeper,
    gone,
    is_alive,
    kill_at_once,
    leave_no_room,
    send,
    stop_at_once,
    stopped,
)
from resilience.proxy import FaultProxy
from resilience.target import Hold
from resilience.usage import others_of_session, stored_in, taken_by, with_descendants

START_SECONDS: Final = 60.0
STOP_SECONDS: Final = 30.0
SYSTEM_SECONDS: Final = 300.0
"""How long a system may take to start."""
AUDIT_SECONDS: Final = 600.0
RIGHTS_SECONDS: Final = 90.0
"""How long a change of rights or tenants may take, with parts away that have to hear of it."""
POLL_SECONDS: Final = 0.01
STATUS_SECONDS: Final = 0.2
RESTART_SECONDS: Final = 0.5
"""So long a part that has ended by itself is away."""

_PLACES: Final = re.compile(r"\{(dir|user|root|python|(?:host|disk)(?::[\w-]+)?|port:[\w+-]+)\}")

Command = Sequence[str]


class LocalTarget:
    """A target whose parts are processes of this machine; see `target.Target`.

    Args:
        needs: Those of `machines.machine.NEEDS` that the faults of the run have.
        rng: Decides which packets are lost.
    """

    def __init__(
        self,
        definition: Definition,
        *,
        needs: Collection[str] = (),
        rng: random.Random | None = None,
    ) -> None:
        self.name = definition.name
        self.promises = definition.promises
        self.parts = tuple(definition.parts)
        self.nodes = tuple(name for name, part in definition.parts.items() if part.port)
        self._definition = definition
        self._needs = needs
        self._rng = rng or random.Random(0)  # noqa: S311 - repeatable, not secret
        self._switch: Switch | None = None
        self._machines: dict[str, LocalMachine] = {}
        self._addresses: dict[str, tuple[str, int]] = {}
        self._direct: dict[str, tuple[str, int]] = {}
        self._proxied: dict[str, tuple[str, int]] = {}
        self._proxies: dict[str, FaultProxy] = {}
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._restarts: dict[str, asyncio.Task[None]] = {}
        self._ports: dict[str, int] = {}
        self._ended: dict[str, int] = {}
        """The former process of a part that its system starts again."""
        self._stopped: dict[str, list[int]] = {}
        self._frozen: dict[str, tuple[float, list[int]]] = {}
        """By machine: since when, and its processes."""
        self._taken: dict[tuple[str, str, str], None] = {}
        """Rights that clients do not have: client, action and filter, in the order they went."""
        self._tenants: dict[str, bool] = {}
        """Tenants that it has got, and whether they are open."""
        self._keeper = PartKeeper()
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def client(
        self,
        name: str,
        driver: str,
        history: Writer,
        *,
        on_lost: Callable[[], None],
        hold: Hold | None,
    ) -> FrameClient:
        return drivers.make(driver, name, history, self._addresses, on_lost=on_lost, hold=hold)

    def connect(self, *, through_proxy: bool) -> None:
        """Let the clients that are made from now on come through the proxies, or not."""
        self._addresses = dict(self._proxied if through_proxy else self._direct)

    @property
    def folder(self) -> Path:
        if self._folder is None:
            raise TargetError(f"{self.name} is not started")
        return Path(self._folder.name)

    def _fill(self, text: str) -> str:
        def value(match: re.Match[str]) -> str:
            key, _, name = match[1].partition(":")
            match key:
                case "port":
                    return str(self._port(name))
                case "host":
                    return self._machines[name or MACHINE].host
                case "disk":
                    return str(self._machines[name or MACHINE].disk)
            known = {
                "dir": str(self.folder),
                "user": getpass.getuser(),
                "root": str(ROOT),
                "python": sys.executable,
            }
            return known[key]

        return _PLACES.sub(value, text)

    def _port(self, name: str) -> int:
        """Return the port of this name: a free one at its first use, then the same.

        `mqtt+1` is the port after that of `mqtt`.
        """
        name, _, further = name.partition("+")
        if name not in self._ports:
            self._ports[name] = free_port()
        return self._ports[name] + int(further or 0)

    async def start(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix=f"resilience-{self.name}-")
        try:
            self._start_machines()
            for name, text in self._definition.files.items():
                (self.folder / name).write_text(self._fill(text), encoding="utf-8")
            for name, part in self._definition.parts.items():
                if part.port:
                    host = self._machines[part.machine].host
                    self._direct[name] = (host, int(self._fill(part.port)))
            for name in self._machines:
                await self._start_all(name)
            if PROXY in self._needs:
                for name, address in self._direct.items():
                    proxy = self._proxies[name] = FaultProxy(*address)
                    self._proxied[name] = (LOOPBACK, await proxy.start())
            self.connect(through_proxy=PROXY in self._needs)
        except BaseException:
            await self.stop()
            raise

    def _start_machines(self) -> None:
        names = self._definition.machines
        if PACKETS in self._needs:
            self._switch = Switch(names, self._rng)
            self._switch.start()
        for name in names:
            machine = self._machines[name] = LocalMachine(
                name,
                self.folder,
                self._switch,
                disk_mebibytes=self._definition.disk_mebibytes,
                has_disk=DISK in self._needs,
                has_clock=CLOCK in self._needs,
            )
            machine.start()

    async def _start_all(self, machine: str) -> None:
        """Start the parts on this machine: parts that are started one by one, then the system."""
        system = self._definition.system
        mine = {
            name: part for name, part in self._definition.parts.items() if part.machine == machine
        }
        for name, part in mine.items():
            if part.command:
                await self.launch(name)
        if system.start and system.machine == machine:
            await self._are_up()
            await self._command(system.start, SYSTEM_SECONDS)
        for name, part in mine.items():
            if not part.command:
                await self.launch(name)

    async def _command(self, command: Command, seconds: float) -> str:
        """Run a command of the target to its end; return its output.

        Raises:
            TargetError: It takes longer, or fails.
        """
        code, out = await self._run(command, seconds)
        if code:
            raise TargetError(f"{self._fill(' '.join(command))}: exit code {code}{self._log()}")
        return out

    async def _run(self, command: Command, seconds: float) -> tuple[int, str]:
        """Run a command of the target; return its exit code and its output.

        Raises:
            TargetError: It takes longer.
        """
        machine = self._machines[self._definition.system.machine]
        words = machine.command([self._fill(word) for word in command])
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
        return process.returncode or 0, out.decode(errors="replace")

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
        self._keeper.release_all()
        for task in self._restarts.values():
            task.cancel()
        self._restarts.clear()
        if self._folder is not None and self._definition.system.stop and self._machines:
            with contextlib.suppress(TargetError):
                await self._command(self._definition.system.stop, 120)
        # The data on their disks is not needed, and brokers that end in order wait for others.
        kill_at_once([one.pid for one in self._processes.values() if one.returncode is None])
        for process in self._processes.values():
            await process.wait()
        self._processes.clear()
        if self._folder is not None:
            for machine in self._machines.values():
                machine.stop()
            self._machines.clear()
            if self._switch is not None:
                self._switch.stop()
                self._switch = None
            self._folder.cleanup()
            self._folder = None

    async def _pid(self, part: str) -> int:
        process = self._processes.get(part)
        if process is not None:
            return process.pid
        return self._running(part, await self._pids_of_system())

    def _running(self, part: str, pids: Mapping[str, int]) -> int:
        pid = pids.get(self._definition.parts[part].process)
        if pid is None or not is_alive(pid):
            raise TargetError(f"{part} of {self.name} is not running")
        return pid

    async def _pids_of_system(self) -> dict[str, int]:
        """Return by name the processes that it says it has."""
        # Its exit code may say that something is away, as was wanted.
        _, out = await self._run(self._definition.system.pids, 30)
        try:
            rows = json.loads(out)["processes"]
        except ValueError:
            raise TargetError(f"{self.name} does not say what runs{self._log()}") from None
        return {row["name"]: int(row["pid"]) for row in rows if row["pid"]}

    async def pids(self) -> list[int]:
        """Return all processes of the target."""
        leaders = [process.pid for process in self._processes.values()]
        if self._definition.system.pids:
            leaders += (await self._pids_of_system()).values()
        return with_descendants(leaders)

    async def audit(self) -> tuple[bool, str]:
        """Have the target held to its records; return whether all holds, and its words.

        One that says nothing and fails could not look: the words are why.
        """
        code, said = await self._run(self._definition.system.audit, AUDIT_SECONDS)
        return not code, said or f"exit code {code}{self._log()}\n"

    async def usage(self) -> dict[str, int]:
        """Return the usage of the target now: bytes of memory and of its disks, open files."""
        taken = taken_by(await self.pids())
        stored = sum(stored_in(machine.disk) for machine in self._machines.values())
        return {"memory": taken.memory_bytes, "files": taken.files, "disk": stored}

    async def kill(self, part: str) -> None:
        await self._end_part(part, signal.SIGKILL)

    async def terminate(self, part: str) -> None:
        await self._end_part(part, signal.SIGTERM)

    async def _end_part(self, part: str, number: signal.Signals) -> None:
        """Signal a part, and wait for its end; it is not started until it is to be launched.

        Processes that it has started get only signals that cannot be caught.
        """
        process = self._processes.get(part)
        if process is None:
            pids = await self._pids_of_system()
            pid = self._running(part, pids)
            if keeper := pids.get(self._definition.system.keeper):
                self._keeper.hold(part, keeper)
        else:
            pid = process.pid
        others = [] if number is signal.SIGTERM else others_of_session(pid)
        send([pid, *others], number)
        await self._has_ended(part, pid, STOP_SECONDS)

    async def _has_ended(self, part: str, pid: int, seconds: float) -> None:
        """Wait for the end of a part, and note it."""
        await gone([pid], seconds, f"{part} of {self.name}")
        process = self._processes.pop(part, None)
        if process is None:
            self._ended[part] = pid
        else:
            await process.wait()

    async def launch(self, part: str) -> None:
        if part in self._processes:
            return
        if self._definition.parts[part].command:
            await self._spawn(part)
        self._keeper.release(part)
        former = self._ended.pop(part, None)
        if part in self._direct:
            await self._listening(part, self._direct[part])
        elif former is not None:
            await self._await_another(part, former)

    async def _spawn(self, part: str) -> None:
        self._keep(part, await self._new_process(part))

    async def _new_process(self, part: str) -> asyncio.subprocess.Process:
        definition = self._definition.parts[part]
        machine = self._machines[definition.machine]
        words = machine.command([self._fill(word) for word in definition.command])
        with (self.folder / f"{part}.log").open("ab") as log:
            return await asyncio.create_subprocess_exec(
                *words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder
            )

    def _keep(self, part: str, process: asyncio.subprocess.Process) -> None:
        self._processes[part] = process
        if self._definition.parts[part].restarts:
            self._restarts[part] = asyncio.create_task(self._restart(part, process))

    async def _restart(self, part: str, process: asyncio.subprocess.Process) -> None:
        """Start a part again that ends by itself; a fault takes it out of `_processes`."""
        await process.wait()
        await asyncio.sleep(RESTART_SECONDS)
        if self._processes.get(part) is not process:
            return
        following = await self._new_process(part)
        if self._processes.get(part) is process:
            self._keep(part, following)
        else:  # struck while it started
            kill_at_once([following.pid])
            await following.wait()

    async def _await_another(self, part: str, former: int) -> None:
        """Wait until the system has started a part again."""
        loop = asyncio.get_running_loop()
        end = loop.time() + START_SECONDS
        name = self._definition.parts[part].process
        while (await self._pids_of_system()).get(name) in (None, former):
            if loop.time() > end:
                raise TargetError(f"{part} of {self.name} was not started again")
            await asyncio.sleep(STATUS_SECONDS)

    async def _are_up(self) -> None:
        """Wait for the parts that the system needs to start; on a busy machine that takes long."""
        for name, part in self._definition.parts.items():
            if part.listens and name in self._processes:
                host, _, port = self._fill(part.listens).rpartition(":")
                await self._listening(name, (host, int(port)), SYSTEM_SECONDS)

    async def _listening(
        self, part: str, address: tuple[str, int], seconds: float = START_SECONDS
    ) -> None:
        """Wait until a part takes connections."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while True:
            process = self._processes.get(part)
            if (
                process is not None
                and process.returncode is not None
                and not self._definition.parts[part].restarts
            ):
                raise TargetError(f"{part} ended with code {process.returncode}{self._log()}")
            try:
                _, writer = await asyncio.open_connection(*address)
            except OSError:
                if loop.time() > end:
                    raise TargetError(f"{part} takes no connections{self._log()}") from None
                await asyncio.sleep(POLL_SECONDS)
            else:
                writer.transport.abort()
                return

    async def pause(self, part: str) -> None:
        pid = await self._pid(part)
        self._stopped[part] = [pid, *others_of_session(pid)]
        send(self._stopped[part], signal.SIGSTOP)

    async def resume(self, part: str) -> None:
        send(self._stopped.pop(part, ()), signal.SIGCONT)

    async def freeze(self, part: str) -> None:
        machine = self.machine(part)
        pids = stop_at_once(await self._leaders(machine.name))
        loop = asyncio.get_running_loop()
        self._frozen[machine.name] = loop.time(), pids
        try:
            await stopped(pids, STOP_SECONDS)
        except TargetError:
            await self.thaw(part)
            raise
        # From now on no process reads a clock: so none goes back.
        self._frozen[machine.name] = loop.time(), pids

    async def thaw(self, part: str) -> None:
        machine = self.machine(part)
        since, pids = self._frozen.pop(machine.name)
        try:
            machine.hold_clock(asyncio.get_running_loop().time() - since)
        finally:
            send(pids, signal.SIGCONT)

    async def fill_files(self, part: str, seconds: float) -> None:
        pid = await self._pid(part)
        pids = [pid, *others_of_session(pid)]
        leave_no_room(pids)
        try:
            await self._has_ended(part, pid, seconds)
        except TargetError:
            leave_no_room(pids, room=True)
            raise

    async def fill_log(self, part: str) -> None:
        definition = self._definition.parts[part]
        if not (definition.fill and definition.empty):
            raise TargetError(f"{self.name} does not say how the log of {part} is filled")
        await self._command(definition.fill, START_SECONDS)

    async def empty_log(self, part: str) -> None:
        await self._command(self._definition.parts[part].empty, START_SECONDS)

    async def expire(self, part: str) -> None:
        if command := self._definition.parts[part].expire:
            await self._command(command, START_SECONDS)

    async def start_second(self, part: str) -> None:
        definition = self._definition.parts[part]
        if not definition.second:
            raise TargetError(f"{self.name} does not say how a second {part} is started")
        code, said = await self._run(definition.second, START_SECONDS)
        if not code or definition.refusal not in said:
            raise TargetError(
                f"the second {part}: expected failure with {definition.refusal!r},"
                f" got exit code {code} with {said[-300:]!r}"
            )

    def network(self, part: str) -> FaultProxy:
        proxy = self._proxies.get(part)
        if proxy is None:
            raise TargetError(f"no proxy before {part} of {self.name}")
        return proxy

    def machine(self, part: str) -> LocalMachine:
        return self._machines[self._definition.parts[part].machine]

    async def lose_power(self, part: str) -> None:
        machine = self.machine(part)
        await machine.lose_power()
        await self._forget_all(machine.name)
        # It may not know them any more.
        self._tenants.clear()

    async def crash(self, part: str) -> None:
        machine = self.machine(part).name
        leaders = await self._leaders(machine)
        await gone(kill_at_once(leaders), STOP_SECONDS, f"all of {self.name}")
        await self._forget_all(machine)

    async def _leaders(self, machine: str) -> list[int]:
        """Return the processes of a machine that have started all its others, the keeper first."""
        leaders = [
            process.pid
            for name, process in self._processes.items()
            if self._definition.parts[name].machine == machine
        ]
        system = self._definition.system
        if system.pids and system.machine == machine:
            pids = await self._pids_of_system()
            keeper = pids.pop(system.keeper, None)
            leaders += [*([keeper] if keeper else []), *pids.values()]
        return leaders

    async def _forget_all(self, machine: str) -> None:
        """Note that all processes of a machine have ended."""
        self._keeper.forget()
        for name, part in self._definition.parts.items():
            process = self._processes.pop(name, None) if part.machine == machine else None
            if process is not None:
                await process.wait()

    async def start_machine(self, part: str) -> None:
        await self._start_all(self.machine(part).name)

    def closed_files(self, part: str) -> list[Path]:
        definition = self._definition.parts[part]
        if not (definition.segments or definition.store):
            raise TargetError(f"{self.name} does not say where the log of {part} is")
        folders: dict[Path, list[Path]] = {}
        for path in self._files(definition.segments):
            folders.setdefault(path.parent, []).append(path)
        closed = [path for files in folders.values() for path in sorted(files)[:-1]]
        return sorted([*closed, *self._files(definition.store)], key=lambda p: p.stat().st_mtime)

    def _files(self, pattern: str) -> list[Path]:
        return [*Path("/").glob(self._fill(pattern).lstrip("/"))] if pattern else []

    def rewrites(self, part: str) -> bool:
        return bool(self._definition.parts[part].store)

    async def set_right(
        self, client_id: str, action: str, topic_filter: str, *, allowed: bool
    ) -> None:
        rights = self._definition.rights
        if not rights.apply:
            raise TargetError(f"{self.name} does not say how rights are changed")
        key = (client_id, action, topic_filter)
        if allowed:
            self._taken.pop(key, None)
        else:
            self._taken[key] = None
        (self.folder / "rights").write_text(rights.document(self._taken), encoding="utf-8")
        await self._until_done(rights.apply, RIGHTS_SECONDS)

    def username(self, tenant: str, client_id: str) -> str | None:
        if not tenant:
            return None
        return self._definition.tenants.username.format(tenant=tenant, client_id=client_id)

    async def open_tenants(self, names: Iterable[str]) -> None:
        """Let the clients of these tenants in."""
        for name in names:
            if not self._tenants.get(name):
                await self.set_tenant(name, is_open=True)

    async def set_tenant(self, tenant: str, *, is_open: bool) -> None:
        tenants = self._definition.tenants
        if not tenants.apply:
            raise TargetError(f"{self.name} does not say how tenants are changed")
        self._tenants[tenant] = is_open
        (self.folder / "tenants").write_text(tenants.document(self._tenants), encoding="utf-8")
        await self._until_done(tenants.apply, RIGHTS_SECONDS)

    async def _until_done(self, command: Command, seconds: float) -> None:
        """Run a command until it succeeds: the part that it asks may be away."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while True:
            try:
                await self._command(command, seconds)
            except TargetError:
                if loop.time() > end:
                    raise
                await asyncio.sleep(STATUS_SECONDS)
            else:
                return
