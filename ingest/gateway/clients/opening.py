"""A client on its way to its session: performs the effects of `ingest.session.opening`."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from ingest.gateway.base.client import Newcomer
from ingest.gateway.base.drops import DropReason
from ingest.gateway.sessions.client_session import ClientSession
from ingest.gateway.sessions.session_context import StoredSession
from ingest.gateway.sessions.sessions import PAUSED_BY_SESSION
from ingest.gateway.sessions.slow_clients import FallenBehind
from ingest.protocol.packets import MQTT_5_0
from ingest.protocol.reason_codes import DisconnectReasonCode
from ingest.session.client.checkpoint import Before
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
from ingest.session.states import SessionState
from mqlake.errors import LogError
from mqlake.records.offsets import cut, latest
from mqlake.records.progress import to_progress
from mqlake.records.sessions import (
    FULL_CLAIMS_SINCE,
    NEVER_EXPIRES,
    session_members,
    to_session,
    to_subscription,
)

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from ingest.gateway.base.drops import Drops
    from ingest.gateway.base.events import Events
    from ingest.gateway.routing.route_rounds import RouteRequest
    from ingest.gateway.sessions.resuming import Resumer
    from ingest.gateway.sessions.session_context import SessionContext
    from ingest.gateway.sessions.sessions import Sessions
    from ingest.protocol.packets import Connect
    from ingest.protocol.properties import Properties
    from ingest.protocol.reason_codes import ConnackReasonCode
    from ingest.session.holder_host import Grant
    from ingest.session.shard.effects import Work
    from mqlake.records.shards import Key

logger = logging.getLogger(__name__)

_LATER: Final = object()
"""An effect that is not over: `proceed` tells of its end."""


class Entrant(Newcomer, Protocol):
    """A connection whose client may be let in.

    Implemented by `ingest.gateway.clients.connection.ClientConnection`, which describes it.
    """

    def adopt(self, session: ClientSession, connect: Connect) -> None: ...
    def welcome(self, connect: Connect, extra: Properties, *, session_present: bool) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OpeningContext:
    """Parts of a gateway that all its openings use.

    Attributes:
        max_expiry_interval: Seconds that a session may outlive its connection.
        drops: For messages that clients do not get.
        events: For rules and other readers.
        of_session: Context of the sessions.
        sessions: Sessions of the gateway.
        resumer: Brings those back that were stored.
    """

    max_expiry_interval: int
    drops: Drops
    events: Events
    of_session: SessionContext
    sessions: Sessions
    resumer: Resumer


class Opening:
    """A connection between CONNECT and the first packet that its client is heard with.

    Args:
        context: Shared by all openings.
        connection: Connection of the client.
        connect: CONNECT of the client.
        extra: Properties of CONNACK that come from its authentication.

    Attributes:
        key: Key of the session.
        expiry_interval: How long the session is to outlive the connection, in seconds.
    """

    __slots__ = (
        "_context",
        "_cursor",
        "_extra",
        "_is_welcome",
        "_session",
        "_stored",
        "_work",
        "connect",
        "connection",
        "expiry_interval",
        "key",
    )

    def __init__(
        self,
        context: OpeningContext,
        connection: Entrant,
        connect: Connect,
        extra: Properties,
    ) -> None:
        self._context = context
        self.connection = connection
        self.connect = connect
        self.key: Key = (connection.tenant, connection.client_id)
        self.expiry_interval = _expiry_interval(connect, context.max_expiry_interval)
        self._extra = extra
        self._is_welcome = False
        self._session: ClientSession | None = None
        self._cursor: list[int]  # from `Route` on
        self._stored: StoredSession | None = None
        self._work: Work = open_session()

    @property
    def is_kept(self) -> bool:
        """Tell whether something of the session is to outlive the connection."""
        return bool(self.connect.will or self.expiry_interval)

    def proceed(self, result: Any = None, error: LogError | None = None) -> None:
        """Go on with the result of an effect, until one is not over at once."""
        while result is not _LATER:
            try:
                effect = self._work.send(result) if error is None else self._work.throw(error)
            except StopIteration:
                return
            error = None
            result = _PERFORM[type(effect)](self, effect)

    def refuse(self, reason_code: ConnackReasonCode, reason: str) -> None:
        """Turn the client away."""
        self.connection.refuse(reason_code, reason)

    def cut(self, reason: str) -> None:
        """Turn the client away without an answer."""
        self.connection.cut(reason)

    def claimed_session(self) -> dict[str, Any] | None:
        """Return the session of a full claim; None: not every living gateway can settle one."""
        if not self.is_kept or self._context.of_session.peers.version < FULL_CLAIMS_SINCE:
            return None
        self._session = self._new_session()
        return session_members(self._session.record())

    def _new_session(self) -> ClientSession:
        return ClientSession(  # [MQTT5-3.1.2-6]
            self._context.of_session, self.connection, self.connect, self.expiry_interval
        )

    @property
    def _loaded(self) -> ClientSession:
        assert self._session is not None
        return self._session

    # The effects

    def _claim(self, _: ClaimSession) -> Any:
        self._context.sessions.claim(self)
        return _LATER

    def _load(self, load: LoadSession) -> Any:
        grant = load.grant
        self._stored = stored = _stored(grant)
        session = self._session = self._session or self._new_session()
        session.become(SessionState.CLAIMED)
        if stored is not None:  # [MQTT5-3.1.2-5] [MQTT311-3.1.2-4]
            session.restore(stored)
        self._context.sessions.add(session)
        self.connection.adopt(session, self.connect)
        is_recorded = grant is not None and grant.is_full
        if stored is None:
            return NOTHING_STORED._replace(is_recorded=is_recorded)
        is_behind = stored.progress is not None or bool(session.subscriptions)
        return Loaded(True, is_behind, is_recorded)

    def _hold(self, _: Hold) -> Any:
        self._context.of_session.session_log.once_held(self._held)
        return _LATER

    def _held(self) -> None:
        if not self.connection.is_closing:
            self.proceed()

    def _record(self, _: RecordSession) -> Any:
        self._loaded.become(SessionState.SAVED)
        self._write(self._recorded)
        return _LATER if self.connection.is_closing else None

    def _recorded(self, error: LogError | None) -> None:
        if error is None:
            self._context.sessions.saved(self._loaded)
        elif not self.connection.is_closing:
            self._refuse(Refuse(str(error)))

    def _save(self, _: Save) -> Any:
        self._write(self._saved)
        return _LATER

    def _write(self, report: Callable[[LogError | None], None]) -> None:
        session, stored = self._loaded, self._stored
        progress = None
        if stored is not None and stored.progress is not None:
            # Until the session has caught up, our marks say nothing of it.
            stored.progress.settled = False
            progress = partial(session.save_progress, stored.progress)
        try:
            session.save(report, before=Before.CONNACK, progress=progress)
        except LogError as error:
            report(error)

    def _saved(self, error: LogError | None) -> None:
        session = self._loaded
        if error is None and session.is_written:
            self._context.sessions.saved(session)
        if self.connection.is_closing:
            return
        if error is None:
            session.become(SessionState.SAVED)
        self.proceed(error=error)

    def _refuse(self, refuse: Refuse) -> Any:
        if self._is_welcome:
            busy = DisconnectReasonCode.SERVER_BUSY
            self.connection.close(busy, log_reason=refuse.reason)
        else:
            self.connection.cut(refuse.reason)  # the record to be saved may be in the log

    def _welcome(self, welcome: Welcome) -> Any:
        session, connection = self._loaded, self.connection
        self._is_welcome = True
        self._context.events.add(
            "client.connected",
            session.tenant,
            session.client_id,
            protocol_level=session.protocol_level,
            username=session.username,
            peer=connection.peer,
            clean_start=session.clean_start,
            keep_alive=session.keep_alive,
            expiry=session.expiry_interval,
            session_present=welcome.session_present,
        )
        # [MQTT5-3.2.2-2] [MQTT5-3.2.2-3] [MQTT311-3.2.2-1] [MQTT311-3.2.2-2] [MQTT311-3.2.2-3]
        connection.welcome(self.connect, self._extra, session_present=welcome.session_present)
        return _LATER if connection.is_closing else None

    def _route(self, _: RouteFilters) -> Any:
        session, stored = self._loaded, self._stored
        assert stored is not None
        session.become(SessionState.ROUTING)
        if stored.progress is None:  # before anything is routed: it may miss nothing from now on
            self._cursor = self._context.of_session.delivered.next_offsets()
        else:
            self._cursor = stored.progress.cursor
        routes = session.routes(session.subscriptions)

        def counted(ends: asyncio.Future[list[int]]) -> None:
            if session.is_ended:  # it did not know of its routes yet
                for route in routes:
                    self._context.of_session.share_groups.unsubscribe(route)
                return
            session.become(SessionState.CATCHING_UP)
            self.proceed(ends.result())

        def entered(request: RouteRequest) -> None:
            request.counted.add_done_callback(counted)

        self._context.of_session.share_groups.announce(routes, entered)
        return _LATER

    def _catch_up(self, catch_up: CatchUp) -> Any:
        assert self._stored is not None
        self.connection.hear_in(PAUSED_BY_SESSION)
        self._check_not_shorter(catch_up.ends)
        self._context.resumer.resume(
            self._loaded, self._stored, self._cursor, catch_up.ends, self.proceed
        )
        return _LATER

    def _check_not_shorter(self, log_ends: Sequence[int]) -> None:
        """Go on at the end of a log that has lost messages which the session knows, and say so.

        Other messages have their offsets, or get them: they would be passed over as had.

        Args:
            log_ends: Per partition an offset that was given after all that the session knows.
        """
        session = self._loaded
        cursor = cut(self._cursor, log_ends)
        if cursor == list(self._cursor):
            return
        logger.error(
            "the log has lost its end: a session has read further, it goes on at the end "
            "(docs/durability.md)",
            extra={
                "fields": {
                    "client_id": session.client_id,
                    "read_up_to": list(self._cursor),
                    "log_ends": list(log_ends),
                }
            },
        )
        self._context.drops.add(DropReason.UNREADABLE, *session.key, "", 1)
        self._cursor = cursor
        session.cut(log_ends)

    def _go_live(self, go_live: GoLive) -> Any:
        session, connection = self._loaded, self.connection
        session.become(SessionState.LIVE)
        if go_live.starts is not None:
            self._join(go_live.starts)
        session.sender.progress = session.progress
        session.sender.member = session if session.is_stored else None
        session.sender.attach(connection)
        connection.resume_reading(PAUSED_BY_SESSION)
        for history in session.histories():
            if isinstance(history, FallenBehind):
                self._context.of_session.slow_clients.start(history)
            else:
                self._context.of_session.histories.start(history)

    def _join(self, starts: Sequence[int]) -> None:
        """Put the subscriptions of a session in force that has all it missed up to `starts`."""
        session = self._loaded
        session.floor = list(starts)
        session.sender.caught_up(session.floor)
        self._context.sessions.marks.wait_for_offsets(session)
        for subscription in session.subscriptions.values():
            if not session.is_catching_up(subscription.topic_filter):
                subscription.starts = latest(starts, subscription.starts)
                self._context.of_session.subscriptions.add(session.tenant, subscription)
        if session.progress is not None:
            session.progress.touch()


_PERFORM: Final[dict[type, Callable[[Opening, Any], Any]]] = {
    ClaimSession: Opening._claim,
    LoadSession: Opening._load,
    Hold: Opening._hold,
    RecordSession: Opening._record,
    Save: Opening._save,
    Refuse: Opening._refuse,
    Welcome: Opening._welcome,
    RouteFilters: Opening._route,
    CatchUp: Opening._catch_up,
    GoLive: Opening._go_live,
}


def _expiry_interval(connect: Connect, most: int) -> int:
    """Return how long a session outlives its connection.

    3.x knows two cases: with clean session not at all, else for ever. [MQTT311-3.1.2-5]
    """
    if connect.protocol_level < MQTT_5_0:
        asked = 0 if connect.clean_start else NEVER_EXPIRES
    else:
        asked = connect.properties.get("session_expiry_interval", 0)
    return min(asked, most)


def _stored(grant: Grant | None) -> StoredSession | None:
    if grant is None or grant.session is None:
        return None
    session = to_session(grant.session)
    progress = None if grant.progress is None else to_progress(grant.progress)
    if progress is not None and progress.session_id != session.session_id:
        progress = None  # that of an earlier session of the client
    return StoredSession(session, progress, [to_subscription(one) for one in grant.subscriptions])
