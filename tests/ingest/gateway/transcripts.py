"""Dialogues of several clients with the gateway, as text: read, played, written anew.

The format is documented in `tests/transcripts/README.md`.
"""

import asyncio
import json
import re
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, field, fields
from enum import IntEnum
from pathlib import Path
from typing import Any, Final, cast, get_args, get_type_hints

from ingest.protocol.packets import Connack, Connect, Packet, Pingreq, Pingresp, Subscription, Will
from ingest.protocol.properties import PROPERTIES as PROPERTY_TABLE
from ingest.protocol.properties import Properties, PropertyType
from mqlake.clock import ManualClock
from tests.ingest.gateway.harness import Client, Harness, running_gateway, until
from tests.pace import within

LEVELS: Final = {"3.1": 3, "3.1.1": 4, "5.0": 5}
KINDS: Final = {
    kind.__name__.upper(): kind for kind in cast("tuple[type[Packet], ...]", Packet.__args__)
}
CLOSED: Final = "(closed)"
LEFT_OUT: Final = "reason_string"
"""It says in words, which may change, what the reason code says."""

MASKED: Final = "assigned_client_identifier"
"""The transcript says that it is there, not what it holds."""

QUIET_SECONDS: Final = 0.1
"""When a transcript is written anew: after so long without a packet an answer is complete."""

_PROPERTY_TYPES: Final = {row.name: row.type for row in PROPERTY_TABLE}


@dataclass
class Step:
    """One thing that happens and what the clients get because of it."""

    line: str
    number: int
    answers: dict[str, list[str]] = field(default_factory=dict)
    """By client, in the order of the file; for the version at hand."""


@dataclass
class Transcript:
    path: Path
    levels: list[str]
    settings: dict[str, Any]
    head: list[str]
    """The lines before the first step: what it shows, its marks, its options."""
    body: list[tuple[int, str]]
    """Number and text of the lines from the first step on."""

    def steps(self, level: str) -> list[Step]:
        """Return the steps as one version plays them."""
        steps: list[Step] = []
        for number, line in self.body:
            text, versions = line, None
            if found := re.match(r"\[([\d. ]+)\] +", line):
                text, versions = line[found.end() :], found[1].split()
            if versions is not None and level not in versions:
                continue
            name, sign, packet = text.partition(" < ")
            if sign:
                steps[-1].answers.setdefault(name.strip(), []).append(packet.strip())
            elif text and not text.startswith("#"):
                steps.append(Step(text, number))
        return steps


def read(path: Path) -> Transcript:
    """Read a transcript; the options end with the first step."""
    lines = path.read_text(encoding="utf-8").splitlines()
    levels, settings = ["5.0"], {}
    start = 0
    for start, line in enumerate(lines):  # noqa: B007
        if line.startswith("levels:"):
            levels = line.partition(":")[2].split()
        elif line.startswith("settings:"):
            words = line.partition(":")[2].split()
            settings = {name: json.loads(value) for name, _, value in map(_partition, words)}
        elif line and not line.startswith("#"):
            break
    body = [(number, line) for number, line in enumerate(lines[start:], start + 1) if line]
    return Transcript(path, levels, settings, lines[:start], body)


async def play(transcript: Transcript, level: str) -> None:
    """Do every step and compare what comes back."""
    async with _Stage(transcript, level) as player:
        for step in transcript.steps(level):
            await player.do(step.line, ends=_ends(step))
            for name, expected in step.answers.items():
                for answer in expected:
                    came = await player.answer(name)
                    assert came == answer, (
                        f"{transcript.path.name}, line {step.number}, {level}: {step.line}\n"
                        f"expected: {name} < {answer}\n     got: {name} < {came}"
                    )
        await player.finish()


async def rewrite(transcript: Transcript) -> None:
    """Write the transcript anew with what comes back now; notes and empty lines stay."""
    played = {level: await _record(transcript, level) for level in transcript.levels}
    lines = list(transcript.head)
    came: list[tuple[str, dict[str, list[str]]]] = []
    text = transcript.path.read_text(encoding="utf-8").splitlines()[len(transcript.head) :]
    inputs = [line for line in text if not _is_answer(line)]
    for index, line in enumerate(inputs):
        lines.append(line)
        if not line or line.startswith("#"):
            continue
        versions = _versions(line) or transcript.levels
        came += [(level, played[level].pop(0).answers) for level in versions]
        # One step may stand on a line for each version; what comes stands behind them all.
        following = _versions(inputs[index + 1]) if index + 1 < len(inputs) else None
        if following and not set(following) & {level for level, _ in came}:
            continue
        lines.extend(_merge(came, transcript.levels))
        came = []
    transcript.path.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")


async def _record(transcript: Transcript, level: str) -> list[Step]:
    steps = []
    async with _Stage(transcript, level) as player:
        for step in transcript.steps(level):
            await player.do(step.line, ends=True)
            came = await player.whatever_comes()
            order = [*(name for name in step.answers if name in came), *came]
            answers = {name: came[name] for name in dict.fromkeys(order)}
            steps.append(Step(step.line, step.number, answers))
    return steps


def _merge(came: list[tuple[str, dict[str, list[str]]]], levels: list[str]) -> Iterator[str]:
    """Write the answers of all versions: what they share once, the rest marked."""
    for name in dict.fromkeys(name for _, answers in came for name in answers):
        rest = {level: list(answers.get(name, [])) for level, answers in came}
        while any(rest.values()):
            first, *others = dict.fromkeys(one[0] for one in rest.values() if one)
            if others and any(first in one[1:] for one in rest.values()):
                first = others[0]  # the other versions come to the first later
            alike = [level for level, one in rest.items() if one[:1] == [first]]
            for level in alike:
                del rest[level][0]
            mark = "" if len(alike) == len(levels) else f"[{' '.join(alike)}] "
            yield f"{mark}{name} < {first}"


def _versions(line: str) -> list[str] | None:
    found = re.match(r"\[([\d. ]+)\] +", line)
    return found[1].split() if found else None


def _is_answer(line: str) -> bool:
    return re.match(r"(\[[\d. ]+\] +)?[\w'-]+ < ", line) is not None


def _ends(step: Step) -> bool:
    """Tell whether the one who acts is not there any more afterwards."""
    return CLOSED in step.answers.get(step.line.partition(" ")[0], [])


class _Stage:
    """A gateway for one transcript, its greeting known."""

    def __init__(self, transcript: Transcript, level: str) -> None:
        self._clock = ManualClock()
        self._running = running_gateway(clock=self._clock, **transcript.settings)
        self._level = LEVELS[level]

    async def __aenter__(self) -> "_Player":
        harness = await self._running.__aenter__()
        probe = await Client.open(harness.port)
        greeting = (await probe.handshake("greeting")).properties
        await probe.disconnect()
        return _Player(harness, self._clock, self._level, greeting)

    async def __aexit__(self, *exception: Any) -> None:
        await self._running.__aexit__(*exception)


class _Player:
    def __init__(
        self, harness: Harness, clock: ManualClock, level: int, greeting: Properties
    ) -> None:
        self._harness = harness
        self._clock = clock
        self._level = level
        self._greeting = greeting
        self._clients: dict[str, Client] = {}
        self._waiting: dict[str, list[str]] = {}
        self._accepted: set[str] = set()

    async def do(self, line: str, *, ends: bool) -> None:
        """Do one step; return when the gateway has read what was sent."""
        if line.startswith("* "):
            await self._act(line[2:])
            return
        name, sign, text = (part.strip() for part in line.partition(">"))
        assert sign, f"{line!r} is no step"
        if text.startswith("0x"):
            self._clients[name].send_bytes(bytes.fromhex(text[2:]))
        else:
            packet = parse(text)
            if isinstance(packet, Connect):
                if "protocol_level=" not in text:
                    packet.protocol_level = self._level
                if name not in self._clients:
                    level = packet.protocol_level
                    self._clients[name] = await Client.open(self._harness.port, level)
            self._clients[name].send(packet)
        if name in self._accepted and not ends:
            await self._catch_up(name)

    async def answer(self, name: str) -> str:
        """Return the next packet that this client gets."""
        waiting = self._waiting.get(name)
        return waiting.pop(0) if waiting else await self._receive(name)

    async def finish(self) -> None:
        """Nothing may be left that no line expects."""
        for name in list(self._clients):
            if name in self._accepted:
                await self._catch_up(name)
        assert {name: left for name, left in self._waiting.items() if left} == {}

    async def whatever_comes(self) -> dict[str, list[str]]:
        """Return everything that comes until it is quiet."""
        answers, self._waiting = self._waiting, {}

        async def collect(name: str) -> None:
            while name in self._clients:
                try:
                    async with asyncio.timeout(within(QUIET_SECONDS)):
                        answers.setdefault(name, []).append(await self._receive(name))
                except TimeoutError:
                    return

        await asyncio.gather(*map(collect, list(self._clients)))
        return {name: came for name, came in answers.items() if came}

    async def _act(self, text: str) -> None:
        if found := re.fullmatch(r"([\w'-]+) is cut", text):
            self._forget(found[1]).cut()
            await until(lambda: len(self._harness.gateway.connections) <= len(self._clients))
        elif found := re.fullmatch(r"(\d+(?:\.\d+)?) seconds? pass(es)?", text):
            # What was done before has its time in the log.
            await until(lambda: not self._harness.writer.queued())
            self._clock.advance(float(found[1]))
            self._harness.gateway.shards.tick()  # as it does once a second
        else:
            raise AssertionError(f"{text!r} is no action")

    async def _catch_up(self, name: str) -> None:
        """Ask for a PINGRESP: the gateway has then read all that came before."""
        client = self._clients[name]
        client.send(Pingreq())
        while name in self._clients:
            packet = await client.receive()
            if isinstance(packet, Pingresp):
                return
            self._waiting.setdefault(name, []).append(self._note(name, packet))

    async def _receive(self, name: str) -> str:
        assert name in self._clients, f"{name} is not connected"
        return self._note(name, await self._clients[name].receive())

    def _note(self, name: str, packet: Packet | None) -> str:
        if packet is None:
            self._forget(name).close()
            return CLOSED
        if isinstance(packet, Connack):
            if packet.reason_code == 0:
                self._accepted.add(name)
            differs = {
                key: value
                for key, value in packet.properties.items()
                if self._greeting.get(key) != value
            }
            packet.properties = cast("Properties", differs)
        return to_text(packet)

    def _forget(self, name: str) -> Client:
        self._accepted.discard(name)
        return self._clients.pop(name)


def to_text(packet: Packet) -> str:
    """Write a packet as a line: required fields, then whatever differs from its default."""
    words = [type(packet).__name__.upper()]
    tail: list[str] = []
    for item in fields(packet):
        value = getattr(packet, item.name)
        if item.name == "properties":
            words += _property_words(value, "")
        elif isinstance(value, Will):
            words += _will_words(value)
        elif isinstance(value, list):
            tail += [f"| {_item_text(one)}" for one in value]
        elif item.default is MISSING:
            words.append(_value_text(value) or "''")
        elif value != item.default:
            named = isinstance(value, IntEnum)
            words.append(value.name if named else f"{item.name}={_value_text(value)}")
    return " ".join(words + tail)


def parse(text: str) -> Packet:
    """Read what `to_text` writes."""
    head, *items = text.split(" | ")
    name, *words = head.split()
    kind = KINDS[name]
    hints = get_type_hints(kind)
    values: dict[str, Any] = {}
    will: dict[str, Any] = {}
    required = [item.name for item in fields(kind) if item.default is MISSING]
    lists = [name for name in required if "list" in str(hints[name])]
    positions = [name for name in required if name not in lists]
    for word in words:
        key, sign, value = _partition(word)
        if not sign and issubclass(hints.get("reason_code", str), IntEnum) and not positions:
            values["reason_code"] = hints["reason_code"][word]
        elif not sign or positions:
            position = positions.pop(0)
            values[position] = _read_value(hints[position], "" if word == "''" else word)
        elif key.startswith("will."):
            _take(will, Will, key.removeprefix("will."), value)
        else:
            _take(values, kind, key, value)
    if will:
        values["will"] = Will(**will)
    for name in lists:
        values[name] = [_read_item(hints[name], item) for item in items]
    return kind(**values)


def _take(values: dict[str, Any], kind: type, key: str, value: str) -> None:
    hints = get_type_hints(kind)
    if key in hints:
        values[key] = _read_value(hints[key], value)
        return
    properties = values.setdefault("properties", {})
    if key == "user_property":
        name, _, text = value.partition(":")
        properties.setdefault(key, []).append((name, text))
    elif key == "subscription_identifier":
        properties.setdefault(key, []).append(int(value))
    elif _PROPERTY_TYPES[key] == PropertyType.UTF8_STRING:
        properties[key] = value
    elif _PROPERTY_TYPES[key] == PropertyType.BINARY_DATA:
        properties[key] = _read_value(bytes, value)
    else:
        properties[key] = int(value)


def _read_value(hint: Any, text: str) -> Any:
    if hint is bool:
        return {"yes": True, "no": False}[text]
    if hint is int:
        return int(text)
    if hint is bytes or hint == bytes | None:
        return bytes.fromhex(text[2:]) if text.startswith("0x") else text.encode()
    if isinstance(hint, type) and issubclass(hint, IntEnum):
        return hint[text]
    return text


def _read_item(hint: Any, item: str) -> Any:
    (hint,) = get_args(hint)
    if hint is not Subscription:
        return hint[item.strip()] if issubclass(hint, IntEnum) else item.strip()
    topic_filter, *words = item.split()
    options: dict[str, Any] = {}
    for word in words:
        key, _, value = _partition(word)
        _take(options, Subscription, key, value)
    return Subscription("" if topic_filter == "''" else topic_filter, **options)


def _item_text(item: Any) -> str:
    if isinstance(item, Subscription):
        return to_text(cast("Packet", item)).partition(" ")[2]
    return str(item.name if isinstance(item, IntEnum) else item)


def _value_text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, bytes):
        text = value.decode("ascii", errors="replace")
        plain = text.isprintable() and not set(text) & set(" '|") and not text.startswith("0x")
        return text if plain and text.isascii() else f"0x{value.hex()}"
    return str(value)


def _will_words(will: Will) -> list[str]:
    words = [f"will.topic_name={will.topic_name}", f"will.payload={_value_text(will.payload)}"]
    words += [f"will.qos={will.qos}"] * (will.qos > 0) + ["will.retain=yes"] * will.retain
    return words + _property_words(will.properties, "will.")


def _property_words(properties: Properties, prefix: str) -> list[str]:
    words = []
    for key, value in properties.items():
        if key == LEFT_OUT:
            continue
        if key == MASKED:
            texts = ["*"]
        elif key == "user_property":
            texts = [f"{name}:{text}" for name, text in cast("list[tuple[str, str]]", value)]
        elif key == "subscription_identifier":
            texts = [str(one) for one in sorted(cast("list[int]", value))]
        else:
            texts = [_value_text(value)]
        words += [f"{prefix}{key}={text}" for text in texts]
    return words


def _partition(word: str) -> tuple[str, str, str]:
    return word.partition("=")
