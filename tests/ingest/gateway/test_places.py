"""Who waits for his session keeps his place when he gives up and comes again."""

import asyncio
from dataclasses import dataclass

import pytest

from ingest.gateway.log.places import PLACE_SECONDS, Places
from mqlake.clock import ManualClock

pytestmark = pytest.mark.anyio


@dataclass(eq=False)
class Attempt:
    client_id: str
    tenant: str = "default"
    is_over: bool = False


async def taken(places: Places[Attempt]) -> list[str]:
    async with asyncio.timeout(60):
        return [one.client_id for one in await places.take()]


async def test_the_first_ones_are_taken_first() -> None:
    places = Places[Attempt](ManualClock(), 2)
    for name in "abc":
        places.add(Attempt(name))
    assert await taken(places) == ["a", "b"]
    assert await taken(places) == ["c"]
    waiting = asyncio.create_task(taken(places))
    await asyncio.sleep(0)
    places.add(Attempt("d"))
    assert await waiting == ["d"]
    assert len(places) == 0


async def test_who_comes_again_is_where_he_was() -> None:
    places = Places[Attempt](ManualClock(), 2)
    attempts = [Attempt(name) for name in "abcdef"]
    for one in attempts:
        places.add(one)
    attempts[0].is_over = attempts[1].is_over = True
    again = Attempt("b")
    places.add(again)
    assert await taken(places) == ["b", "c"]
    places.add(Attempt("a"))
    assert await taken(places) == ["a", "d"], "he had gone when it was his turn"


async def test_a_place_is_kept_for_a_while() -> None:
    clock = ManualClock()
    places = Places[Attempt](clock, 1)
    gone = Attempt("gone", is_over=True)
    for one in (gone, Attempt("a"), Attempt("b"), Attempt("c")):
        places.add(one)
    assert await taken(places) == ["a"]
    clock.advance(PLACE_SECONDS)
    assert await taken(places) == ["b"]
    places.add(Attempt("gone"))
    assert await taken(places) == ["c"]
    assert await taken(places) == ["gone"]


async def test_nothing_is_kept_of_those_before_nobody() -> None:
    places = Places[Attempt](ManualClock(), 9)
    for number in range(100):
        places.add(Attempt(str(number), is_over=True))
    places.add(Attempt("last"))
    assert await taken(places) == ["last"]
    waiting = asyncio.create_task(taken(places))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(places) == 0
    places.add(Attempt("next"))
    assert await waiting == ["next"]
