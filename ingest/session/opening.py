"""How a session is opened, step by step: the states of `ingest.session.states` up to live.

The coroutine awaits effects and nothing else; a host performs them, at once where it can. So the
order of the effects decides which records are durable before which answers, and a session that
needs nothing of the log is live in the turn of the loop in which CONNECT was read.

A client that is refused by CONNACK may take it that its CONNECT had no effect; one whose
connection ends without CONNACK may not [MQTT5-3.1.2-8]. Once a full claim is on its way its owner
may settle it as if the client had been here, should the gateway die. So from then on the client
gets its session or is cut without CONNACK: it is never refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from ingest.session.shard.effects import Effect
from mqlake.errors import LogError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ingest.session.holder_host import Grant


@dataclass(frozen=True, slots=True)
class ClaimSession(Effect["Grant | None"]):
    """Hold the session of the client: at once when this gateway owns its shard, or has it already.

    Otherwise when the shard's owner gives it. Others that had it are notified.
    """


class Loaded(NamedTuple):
    """A session as it is stored."""

    session_present: bool
    is_behind: bool
    """It has subscriptions, or exchanges to go on with: something may have been missed."""
    is_recorded: bool = False
    """The log has all that CONNACK tells of: the claim said it."""


NOTHING_STORED: Final = Loaded(session_present=False, is_behind=False)


@dataclass(frozen=True, slots=True)
class LoadSession(Effect[Loaded]):
    """Make the session from its stored state, if there is one."""

    grant: Grant | None


@dataclass(frozen=True, slots=True)
class Save(Effect[None]):
    """Have the log take the session as it is, its progress first; nothing for one not to be kept.

    Raises `LogError` when the log does not have it.
    """


@dataclass(frozen=True, slots=True)
class RecordSession(Effect[None]):
    """Hand the session as it is, its progress first, to the log, and go on.

    A full claim has said all that it says of this connection. Later records of the session stand
    behind it; should the log not take it, the connection ends.
    """


@dataclass(frozen=True, slots=True)
class Hold(Effect[None]):
    """Wait until it is certain that this gateway holds the session still."""


@dataclass(frozen=True, slots=True)
class Refuse(Effect[None]):
    """Turn the client away, whether or not it has CONNACK; without one, without an answer."""

    reason: str


@dataclass(frozen=True, slots=True)
class Welcome(Effect[None]):
    """Send CONNACK."""

    session_present: bool


@dataclass(frozen=True, slots=True)
class RouteFilters(Effect["Sequence[int]"]):
    """Have the filters routed; return per partition from where on the router brings all."""


@dataclass(frozen=True, slots=True)
class CatchUp(Effect["Sequence[int]"]):
    """Hand over missed messages; return per partition up to where, not behind the router."""

    ends: Sequence[int]


@dataclass(frozen=True, slots=True)
class GoLive(Effect[None]):
    """Let the session send, and its client be heard.

    Subscriptions count from `starts` on, in the turn in which these were reached; None: there are
    none.
    """

    starts: Sequence[int] | None


async def open_session() -> None:
    """Give a client its session. The host goes on with this only while the client is there."""
    grant = await ClaimSession()
    loaded = await LoadSession(grant)
    if loaded.is_recorded:
        await Hold()
        await Welcome(loaded.session_present)
        await RecordSession()
    else:
        try:
            await Save()
        except LogError as error:
            await Refuse(str(error))
            return
        await Welcome(loaded.session_present)
    reached = None
    if loaded.is_behind:
        ends = await RouteFilters()
        reached = await CatchUp(ends)
    await GoLive(reached)
