"""The gateway answers as Mosquitto does, or as its dialogue says."""

import asyncio
from pathlib import Path
from typing import cast

import pytest

from launcher.ports import free_ports
from mqlake.clock import ManualClock
from tests.ingest.gateway.dialogues import (
    LIMITS,
    Answers,
    Dialogue,
    Player,
    as_reserved_as,
    read_dialogues,
    running_mosquitto,
)
from tests.ingest.gateway.harness import running_gateway, ticks
from tests.ingest.gateway.transcripts import LEVELS

pytestmark = [pytest.mark.programs, pytest.mark.anyio]

FOLDER = Path(__file__).parents[2] / "dialogues"
AT_A_TIME = 24
CASES = [
    pytest.param(name := f"{path.stem}: {dialogue.name}", dialogue, level, id=f"{name} {level}")
    for path in sorted(FOLDER.glob("*.txt"))
    for dialogue in read_dialogues(path)
    for level in dialogue.levels
]

GIVEN = [cast("tuple[str, Dialogue, str]", case.values) for case in CASES]

Key = tuple[str, str]
Played = list[Answers] | BaseException
"""What went wrong with one dialogue fails its test alone."""


@pytest.fixture(scope="module")
def mosquitto(tmp_path_factory: pytest.TempPathFactory) -> dict[Key, Played]:
    """Play every dialogue with a broker of its own, many at a time because some take seconds."""
    folder = tmp_path_factory.mktemp("mosquitto")
    ports: asyncio.Queue[int] = asyncio.Queue()
    for port in free_ports(AT_A_TIME):
        ports.put_nowait(port)

    async def play(dialogue: Dialogue, level: str) -> list[Answers]:
        port = await ports.get()
        try:
            async with running_mosquitto(port, folder):
                player = Player(port, LEVELS[level], asyncio.sleep)
                return await player.play(dialogue.steps(level))
        finally:
            ports.put_nowait(port)

    async def play_all() -> list[Played]:
        playing = [play(dialogue, level) for _, dialogue, level in GIVEN]
        return await asyncio.gather(*playing, return_exceptions=True)

    played = asyncio.run(play_all())
    return {(name, level): found for (name, _, level), found in zip(GIVEN, played, strict=True)}


@pytest.mark.parametrize(("name", "dialogue", "level"), CASES)
async def test_the_gateway_answers_as_mosquitto_does(
    name: str, dialogue: Dialogue, level: str, mosquitto: dict[Key, Played]
) -> None:
    steps = dialogue.steps(level)
    played = mosquitto[name, level]
    if isinstance(played, BaseException):
        raise played
    expected = [answers for _, answers in steps] if dialogue.differs else played
    clock = ManualClock()

    async def advance(seconds: float) -> None:
        clock.advance(seconds)
        await ticks(harness, 2)  # what must not happen would happen then

    async with running_gateway(clock=clock, max_inflight_messages=8, **LIMITS) as harness:
        player = Player(harness.port, LEVELS[level], advance)
        answers = await player.play(steps, expected)
    lines = [line for line, _ in steps]
    if not dialogue.differs:
        answers = as_reserved_as(answers, expected)
    assert list(zip(lines, answers, strict=True)) == list(zip(lines, expected, strict=True))
