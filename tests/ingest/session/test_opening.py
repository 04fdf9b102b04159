"""Opening a session: which steps, in which order, and where it stops."""

from typing import Any

import pytest

from ingest.session.holder_host import Grant
from ingest.session.opening import (
    NOTHING_STORED,
    CatchUp,
    ClaimSession,
    GoLive,
    Hold,
    Loaded,
    LoadSession,
    RecordSession,
    Refuse,
    RouteFilters,
    Save,
    Welcome,
    open_session,
)
from ingest.session.shard.effects import Effect
from mqlake.errors import LogError

GRANT = Grant({"session": 1}, None)
BEHIND = Loaded(session_present=True, is_behind=True)
NEW = [ClaimSession(), LoadSession(None), Save(), Welcome(False), GoLive(None)]
STORED = [
    ClaimSession(),
    LoadSession(GRANT),
    Save(),
    Welcome(True),
    RouteFilters(),
    CatchUp([5, 6]),
    GoLive([7, 8]),
]


def run(*results: Any) -> list[Effect[Any]]:
    """Return the effects, given what comes of each; an error is thrown."""
    work = open_session()
    effects: list[Effect[Any]] = [work.send(None)]
    try:
        for result in results:
            if isinstance(result, Exception):
                effects.append(work.throw(result))
            else:
                effects.append(work.send(result))
    except StopIteration:
        return effects
    work.close()
    return effects


def test_a_new_session_is_live_when_it_is_saved() -> None:
    assert run(None, NOTHING_STORED, None, None, None) == NEW


def test_one_that_was_stored_is_routed_then_read_for_then_live() -> None:
    assert run(GRANT, BEHIND, None, None, [5, 6], [7, 8], None) == STORED


def test_one_that_was_stored_with_nothing_to_miss_is_live_when_it_is_saved() -> None:
    loaded = Loaded(session_present=True, is_behind=False)
    assert run(GRANT, loaded, None, None, None) == [*STORED[:4], GoLive(None)]


@pytest.mark.parametrize("steps", range(len(STORED)))
def test_a_client_that_goes_stops_it_at_every_step(steps: int) -> None:
    assert run(*[GRANT, BEHIND, None, None, [5, 6], [7, 8]][:steps]) == STORED[: steps + 1]


def test_a_client_waits_for_no_record_if_its_claim_has_said_all() -> None:
    loaded = BEHIND._replace(is_recorded=True)
    held = [ClaimSession(), LoadSession(GRANT), Hold(), Welcome(True), RecordSession()]
    assert run(GRANT, loaded, None, None, None, [5, 6], [7, 8], None) == [*held, *STORED[4:]]


def test_a_client_is_not_welcome_before_the_log_has_its_session() -> None:
    error = LogError("the log is away", definite=True)
    assert run(GRANT, BEHIND, error, None) == [*STORED[:3], Refuse("the log is away")]
