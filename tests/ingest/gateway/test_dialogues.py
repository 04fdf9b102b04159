"""The gateway answers as Mosquitto does, or as its dialogue says."""

import asyncio
from pathlib import Path
from typing import cast

import pytest

from ingest.gateway.process import TICK_SECONDS
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
from tests.ingest.gateway.harness import free_port, running_gateway
from tests.ingest.gateway.transcripts import LEVELS

pytestmark = pytest.mark.anyio

FOLDER = Path(__file__).parents[2] / "dialogues"
AT_A_TIME = 24
CASES = [
    pytest.param(name := f"{path.stem}: {dialogue.name}", dialogue, level, id=f"{name} {level}")
    for path in sorted(FOLDER.glob("*.txt"))
    for dialogue in read_dialogues(path)
    for level in dialogue.levels
]

Key = tuple[str, str]


@pytest.fixture(scope="module")
def mosquitto(tmp_path_factory: pytest.TempPathFactory) -> dict[Key, list[Answers]]:
    """Play every dialogue with a broker of its own, many at a time because some take seconds."""
    folder = tmp_path_factory.mktemp("mosquitto")
    (folder / "log").mkdir()
    played: dict[Key, list[Answers]] = {}
    turn = asyncio.Semaphore(AT_A_TIME)

    async def play(name: str, dialogue: Dialogue, level: str) -> None:
        port = free_port()
        async with turn, running_mosquitto(port, folder):
            player = Player(port, LEVELS[level], asyncio.sleep)
            played[name, level] = await player.play(dialogue.steps(level))

    async def play_all() -> None:
        async with asyncio.TaskGroup() as group:
            for case in CASES:
                name, dialogue, level = cast("tuple[str, Dialogue, str]", case.values)
                group.create_task(play(name, dialogue, level))

    asyncio.run(play_all())
    return played


@pytest.mark.parametrize(("name", "dialogue", "level"), CASES)
async def test_the_gateway_answers_as_mosquitto_does(
    name: str, dialogue: Dialogue, level: str, mosquitto: dict[Key, list[Answers]]
) -> None:
    steps = dialogue.steps(level)
    expected = [answers for _, answers in steps] if dialogue.differs else mosquitto[name, level]
    clock = ManualClock()

    async def advance(seconds: float) -> None:
        clock.advance(seconds)
        await asyncio.sleep(2 * TICK_SECONDS)  # what must not happen would happen then

    async with running_gateway(clock=clock, max_inflight_messages=8, **LIMITS) as harness:
        player = Player(harness.port, LEVELS[level], advance)
        answers = await player.play(steps, expected)
    lines = [line for line, _ in steps]
    if not dialogue.differs:
        answers = as_reserved_as(answers, expected)
    assert list(zip(lines, answers, strict=True)) == list(zip(lines, expected, strict=True))
