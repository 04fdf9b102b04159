"""Dialogues that two servers are given alike; `tests/dialogues/README.md` documents the format."""

import asyncio
import re
import shutil
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

from ingest.protocol.encoder import encode
from ingest.protocol.packets import Connack, Connect, Packet, Pingreq, Pingresp
from ingest.protocol.properties import Properties
from tests.ingest.gateway.harness import DEADLINE_SECONDS, Client, turns, until
from tests.ingest.gateway.transcripts import CLOSED, parse, to_text

Answers = dict[str, list[str]]
"""What each client got because of one step."""

SILENT: Final = "(silent)"
ROUNDS: Final = 6
"""More than a step has packets: in a turn Mosquitto takes one of each connection."""

LIMITS: Final[dict[str, Any]] = {
    "receive_maximum": 8,
    "max_packet_bytes": 2048,
    "topic_alias_maximum": 10,
}
"""The gateway's settings; Mosquitto is given the same."""


@dataclass(frozen=True, slots=True)
class Dialogue:
    name: str
    levels: tuple[str, ...]
    differs: str
    """Why the gateway answers otherwise; empty when it must not."""
    lines: tuple[str, ...]

    def steps(self, level: str) -> "list[tuple[str, Answers]]":
        """Return the steps of one version, each with the answers that are written down."""
        steps: list[tuple[str, Answers]] = []
        for line in self.lines:
            found = re.match(r"\[([\d. ]+)\] +", line)
            if found and level not in found[1].split():
                continue
            text = line[found.end() :] if found else line
            name, sign, packet = text.partition(" < ")
            if sign:
                steps[-1][1].setdefault(name, []).append(packet)
            else:
                steps.append((text, {}))
        return [
            (text, {name: arranged(got) for name, got in answers.items()})
            for text, answers in steps
        ]


def read_dialogues(path: Path) -> list[Dialogue]:
    found = []
    for part in path.read_text(encoding="utf-8").split("== ")[1:]:
        name, *lines = (line for line in part.splitlines() if line and not line.startswith("#"))
        levels, differs = ["5.0"], ""
        while lines[0].startswith(("levels:", "differs:")):
            key, _, value = lines.pop(0).partition(":")
            if key == "levels":
                levels = value.split()
            else:
                differs = value.strip()
        found.append(Dialogue(name, tuple(levels), differs, tuple(lines)))
    return found


@dataclass(slots=True)
class Player:
    """Plays one dialogue with one server."""

    port: int
    level: int
    pass_time: Callable[[float], Awaitable[None]]
    greeting: Properties = field(default_factory=lambda: cast("Properties", {}))
    """What every client is told in CONNACK."""
    clients: dict[str, Client] = field(default_factory=dict)
    _accepted: set[str] = field(default_factory=set)
    """Those that may be asked for a PINGRESP."""
    _quiet: set[str] = field(default_factory=set)
    """Those that have sent nothing yet."""

    async def play(
        self, steps: "list[tuple[str, Answers]]", expected: list[Answers] | None = None
    ) -> list[Answers]:
        """Return the answers to each step.

        Args:
            steps: From `Dialogue.steps`.
            expected: The answers that are hoped for: for as many packets it is waited. A server
                that answers one client and delivers to others in one go needs none.
        """
        probe = await Client.open(self.port)
        self.greeting = (await probe.handshake("greeting")).properties
        probe.cut()
        played = []
        for number, (line, _) in enumerate(steps):
            await self._do(line)
            if expected is None:
                await self._settle()
            answers: Answers = {}
            for name in list(self.clients):
                wanted = None
                if expected is not None:
                    wanted = sum(one != SILENT for one in expected[number].get(name, []))
                await self._collect(name, answers.setdefault(name, []), wanted)
            played.append({name: arranged(got) for name, got in answers.items() if got})
        for client in self.clients.values():
            client.cut()
        return played

    async def _do(self, line: str) -> None:
        if found := re.fullmatch(r"\* ([\d.]+) seconds? pass", line):
            await self.pass_time(float(found[1]))
        elif found := re.fullmatch(r"\* (\w+) is cut", line):
            self._accepted.discard(found[1])
            self.clients.pop(found[1]).cut()
            await self._settle()
        elif found := re.fullmatch(r"(\w+) connects", line):
            self.clients[found[1]] = await Client.open(self.port, self.level)
            self._quiet.add(found[1])
        else:
            await self._send(line)

    async def _send(self, line: str) -> None:
        found = re.fullmatch(r"(\w+) (>>?) (.+)", line)
        assert found, f"{line!r} is no step"
        name, sign, text = found.groups()
        if text.startswith("0x"):
            data = bytes.fromhex(text[2:].replace(" ", ""))
        else:
            packet = parse(text)
            if isinstance(packet, Connect):
                packet.protocol_level = self.level
            data = encode(packet, self.level)
        if name not in self.clients:
            self.clients[name] = await Client.open(self.port, self.level)
        self.clients[name].send_bytes(data)
        self._quiet.discard(name)
        if sign == ">>":
            self._accepted.discard(name)

    async def _settle(self) -> None:
        """Wait until the server has done what came before: it serves a client that comes now.

        What it had to say is here then, before anything else is sent: a server that closes with
        unread packets resets the connection, and what it said is lost.
        """
        probe = await Client.open(self.port)
        await probe.handshake("probe")
        for _ in range(ROUNDS):
            await probe.expect_nothing()
        await probe.disconnect()
        await turns()

    async def _collect(self, name: str, answers: list[str], wanted: int | None) -> None:
        """Take what has come for a client, and all that is to come."""
        if wanted is None:
            while await self._receive(name, answers, 0):
                pass
        while name in self.clients and len(answers) < (wanted or 0):
            if not await self._receive(name, answers, DEADLINE_SECONDS):
                break
        if name in self._accepted:
            self.clients[name].send(Pingreq())  # its answer comes after all else
        elif not answers and name not in self._quiet:
            await self._settle()
        # Who is answered and not accepted is closed.
        is_to_come = name in self._accepted or bool(answers)
        while await self._receive(name, answers, DEADLINE_SECONDS if is_to_come else 0):
            pass
        if name in self.clients and name not in self._accepted | self._quiet:
            answers.append(SILENT)
            self.clients.pop(name).cut()

    async def _receive(self, name: str, answers: list[str], timeout_seconds: float) -> bool:
        """Take a packet; return whether one came that was no PINGRESP.

        Without a time only what is here already is taken.
        """
        if name not in self.clients or name in self._quiet:
            return False
        try:
            async with asyncio.timeout(timeout_seconds):
                packet = await self.clients[name].receive()
        except TimeoutError:
            return False
        if isinstance(packet, Pingresp):
            return False
        answers.append(self._note(name, packet))
        return True

    def _note(self, name: str, packet: Packet | None) -> str:
        if packet is None:
            self._accepted.discard(name)
            self.clients.pop(name).close()
            return CLOSED
        if isinstance(packet, Connack):
            if packet.reason_code == 0:
                self._accepted.add(name)
            told = {
                key: value
                for key, value in packet.properties.items()
                if self.greeting.get(key) != value
            }
            packet.properties = cast("Properties", told)
        properties = getattr(packet, "properties", {})
        if "reason_string" in properties:
            del properties["reason_string"]
        # Mosquitto's time is the machine's.
        return re.sub(r"(message_expiry_interval)=[1-9]\d*", r"\1=*", to_text(packet))


def as_reserved_as(answers: list[Answers], other: list[Answers]) -> list[Answers]:
    """Return the answers without the reasons for closing that the other server did not give.

    A server may say why it closes a connection of 5.0, and need not. [MQTT5-4.13.1-1]
    """
    return [
        {
            name: got[-1:] if less.get(name) == [CLOSED] and _is_reason(got[:-1]) else got
            for name, got in more.items()
        }
        for more, less in zip(answers, other, strict=True)
    ]


def _is_reason(answers: list[str]) -> bool:
    return len(answers) == 1 and answers[0].startswith(("DISCONNECT ", "CONNACK "))


def arranged(answers: list[str]) -> list[str]:
    """Return messages first: nothing says whether one comes before the answer to a request."""
    return sorted(answers, key=lambda answer: not answer.startswith("PUBLISH"))


@asynccontextmanager
async def running_mosquitto(port: int, folder: Path) -> AsyncIterator[None]:
    """Run Mosquitto on a port with the gateway's limits."""
    # Debian installs it where users other than root do not look.
    program = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin")
    assert program is not None, "mosquitto is missing: apt install mosquitto"
    config = folder / f"mosquitto-{port}.conf"
    config.write_text(
        f"listener {port} 127.0.0.1\nallow_anonymous true\nmax_topic_alias 10\n"
        f"max_inflight_messages {LIMITS['receive_maximum']}\n"
        f"max_packet_size {LIMITS['max_packet_bytes']}\n"
    )
    process = await asyncio.create_subprocess_exec(
        program, "-c", str(config), stderr=asyncio.subprocess.DEVNULL
    )
    try:
        await until(lambda: process.returncode is not None or _accepts(port))
        assert process.returncode is None, f"mosquitto ended instead of listening on port {port}"
        yield
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()


def _accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
