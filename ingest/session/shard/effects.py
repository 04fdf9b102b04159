"""Effects of a shard's owner: pure coroutines await these, a host performs them.

A coroutine of `ingest.session` awaits nothing else. Its host sends each effect's result back
in, or throws: `Fenced` when the gateway may no longer act, `LogError` when the log did not take it.
It throws before an effect is begun or when it is over, never while it is under way: a coroutine
that has ended has nothing on its way.
So the order of effects in a coroutine is the order in which they are durable; a simulation runs the
same coroutines and stops, delays or loses the host at each of them.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from mqlake.errors import MqlakeError

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from mqlake.records.progress import ProgressRecord
    from mqlake.records.sessions import SessionRecord
    from mqlake.records.shards import Key, Run
    from mqlake.records.versions import Headers

Result = TypeVar("Result")


class Fenced(MqlakeError):  # noqa: N818 - a state, as asyncio's CancelledError
    """This gateway does not own the shard any more, or does not know whether it does."""


class Effect(Generic[Result]):
    """Something for the host to do."""

    __slots__ = ()

    def __await__(self) -> Generator[Effect[Any], Any, Result]:
        result: Result = yield self
        return result


Work: TypeAlias = Coroutine[Effect[Any], Any, None]
"""Done step by step: each effect is performed before the next is asked for."""


def discard(work: Work) -> None:
    """End work where it is, also before it has begun, and with it the awaitable that it awaits."""
    if inspect.getcoroutinestate(work) == inspect.CORO_CREATED:
        # Closed now, it would leave behind an awaitable that is given to it, which never ends then.
        with suppress(StopIteration):
            work.send(None)
    work.close()


@dataclass(frozen=True, slots=True)
class ShardRecord:
    """A record to be appended to a shard."""

    key: bytes
    value: bytes | None
    headers: Headers


@dataclass(frozen=True, slots=True)
class AppendRecords(Effect[None]):
    """Append records to the shard, in their order; done when all are durable."""

    records: Sequence[ShardRecord]


@dataclass(frozen=True, slots=True)
class Tell(Effect[None]):
    """Give a gateway a control record; done when it is durable."""

    gateway: str
    action: str
    value: bytes


@dataclass(frozen=True, slots=True)
class NextOffsets(Effect["list[int]"]):
    """Return offsets of `mqlake.inbound`, by partition, below which nothing is from now on."""


@dataclass(frozen=True, slots=True)
class EndOffsets(Effect["list[int]"]):
    """Return per partition of `mqlake.inbound` the first offset that no reader can have had."""


@dataclass(frozen=True, slots=True)
class Search:
    """A message of `mqlake.inbound` by its header `exchange`."""

    exchange: bytes
    starts: Sequence[int]
    """Per partition the offset below which it is not."""


@dataclass(frozen=True, slots=True)
class Find(Effect[Collection[bytes]]):
    """Return which of these exchanges the log has."""

    searches: Sequence[Search]


@dataclass(frozen=True, slots=True)
class PublishWills(Effect[None]):
    """Append wills to `mqlake.inbound`, each under its exchange; done when all are durable.

    Begun only while others cannot take this gateway for silent before the wills stand there: a
    heartbeat of it has come back that was sent less than the silence, less the time of an append,
    ago. Else it waits for the next heartbeat.
    """

    wills: Sequence[tuple[SessionRecord, bytes]]


@dataclass(frozen=True, slots=True)
class PassOn(Effect[None]):
    """Give share groups messages that the session of an absent client leaves [MQTT5-4.8.2-5]."""

    key: Key
    progress: ProgressRecord


@dataclass(frozen=True, slots=True)
class SessionEnded(Effect[None]):
    """Note that a session has ended; whether its time was over or its end was asked for."""

    key: Key
    is_expired: bool
    epoch: int
    shared_filters: Sequence[str]
    """Its shared subscriptions: it is a member of these groups no more."""


@dataclass(frozen=True, slots=True)
class SettledRun(Effect[None]):
    """Note that sessions of a dead run were taken from it."""

    run: Run
    count: int
