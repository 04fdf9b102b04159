"""A client on its way to its session: performs what the real `open_session` asks for."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ingest.session.client.catch_up import UNBOUNDED, Missed, log_ranges
from ingest.session.client.checkpoint import Before
from ingest.session.client.maybe_sent import MaybeSent
from ingest.session.client.outgoing import Exchange
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
from mqlake.records.offsets import latest
from mqlake.records.progress import decode_progress
from mqlake.records.sessions import decode_session, session_members, will_exchange
from tests.ingest.session.simulation.invariants import Violation
from tests.ingest.session.simulation.sending import REPEATED
from tests.ingest.session.simulation.serving import Serving

if TYPE_CHECKING:
    from collections.abc import Callable

    from ingest.session.holder_host import Grant
    from ingest.session.shard.effects import Work
    from mqlake.errors import LogError
    from mqlake.records.progress import ProgressRecord
    from mqlake.records.shards import Key
    from tests.ingest.session.simulation.clients import Connection
    from tests.ingest.session.simulation.gateway import Process

LATER: Final = object()
_THE_PARTITION: Final = range(1)
_PAGE: Final = 2
"""Records that are read at once for one that catches up."""
OLD_RELEASE: Final = 4
"""In one of so many worlds claims do not say what the session's record will."""


class Opening:
    """A connection between CONNECT and the first packet that its client is heard with."""

    def __init__(self, process: Process, connection: Connection) -> None:
        self.process = process
        self.world = process.world
        self.connection = connection
        self.work: Work = open_session()
        self.serving: Serving | None = None
        self.progress: ProgressRecord | None = None
        """What is stored."""
        self.cursor: list[int]

    @property
    def key(self) -> Key:
        return self.connection.client.key

    @property
    def is_kept(self) -> bool:
        options = self.connection.options
        return options.will_delay is not None or bool(options.expiry)

    def proceed(self, result: Any = None, error: LogError | None = None) -> None:
        while result is not LATER:
            try:
                effect = self.work.send(result) if error is None else self.work.throw(error)
            except StopIteration:
                return
            error = None
            result = PERFORM[type(effect)](self, effect)

    # The effects

    def claimed_session(self) -> dict[str, Any] | None:
        """Return what a full claim says; None where a gateway of the release before lives."""
        if not self.is_kept or self.world.schedule.seed % OLD_RELEASE == 0:
            return None
        self.serving = serving = Serving(self.process, self.connection)
        self.world.judge.created[serving.session_id] = self.connection
        self.known_as(serving)
        return session_members(serving.record())

    def known_as(self, serving: Serving) -> None:
        """Note whose will is known by which name."""
        self.connection.exchange = will_exchange(serving.record())
        self.world.judge.by_exchange[self.connection.exchange] = self.connection

    @property
    def loaded(self) -> Serving:
        assert self.serving is not None
        return self.serving

    def claim(self, _: ClaimSession) -> Any:
        self.process.claim(self)
        return LATER

    def load(self, load: LoadSession) -> Any:
        grant, connection = load.grant, self.connection
        session = _decoded(grant)
        if session is not None and session.principal != connection.client.user:
            raise Violation("whose session", f"{session.session_id} is told on {connection}")
        serving = self.serving = self.serving or Serving(self.process, connection)
        serving.become(SessionState.CLAIMED)
        if session is not None and grant is not None:
            if grant.progress is not None:
                progress = decode_progress(json.dumps(grant.progress).encode())
                if progress.session_id == session.session_id:
                    self.progress = progress
            serving.restore(session, self.progress)
        else:
            self.world.judge.created[serving.session_id] = connection
        self.process.add(serving)
        connection.session_id = serving.session_id
        self.known_as(serving)
        is_recorded = grant is not None and grant.is_full
        if session is None:
            return NOTHING_STORED._replace(is_recorded=is_recorded)
        is_behind = self.progress is not None or bool(serving.subscriptions)
        return Loaded(True, is_behind, is_recorded)

    def hold(self, _: Hold) -> Any:
        self.process.once_counted(self.held)
        return LATER

    def held(self) -> None:
        if not self.connection.is_closed:
            self.proceed()

    def record(self, _: RecordSession) -> Any:
        self.loaded.become(SessionState.SAVED)
        self.write(self.recorded)

    def recorded(self, _: LogError | None) -> None:
        assert self.loaded.epoch is not None
        self.process.holder.saved(self.key, self.loaded.epoch)

    def save(self, _: Save) -> Any:
        self.write(self.saved)
        return LATER

    def write(self, report: Callable[[LogError | None], None]) -> None:
        serving, progress = self.loaded, None
        if self.progress is not None:
            self.progress.settled = False
            progress = partial(serving.save_progress, self.progress)
        serving.save(report, before=Before.CONNACK, progress=progress)

    def saved(self, error: LogError | None) -> None:
        serving = self.loaded
        if error is None and serving.is_written:
            assert serving.epoch is not None
            self.process.holder.saved(self.key, serving.epoch)
        if self.connection.is_closed:
            return
        if error is None:
            serving.become(SessionState.SAVED)
        self.proceed(error=error)

    def refuse(self, _: Refuse) -> Any:
        self.process.close(self.connection)

    def welcome(self, welcome: Welcome) -> Any:
        is_present, connection = welcome.session_present, self.connection
        self.world.note(self.process, f"CONNACK {connection.session_id} present={is_present}")
        self.world.judge.connack(connection, is_present=is_present)
        connection.is_acked = connection.is_concluded = True
        self.world.at(1, connection.client.connected, connection, is_present)

    def route(self, _: RouteFilters) -> Any:
        serving = self.loaded
        serving.become(SessionState.ROUTING)
        self.cursor = [self.process.inbound] if self.progress is None else self.progress.cursor

        def counted(end: int) -> None:
            if not serving.is_ended:
                serving.become(SessionState.CATCHING_UP)
                self.proceed([end])

        self.process.send_barrier(counted)
        return LATER

    def catch_up(self, catch_up: CatchUp) -> Any:
        missed = Missed(list(self.cursor), list(catch_up.ends), UNBOUNDED)
        self.process.later(self.restore_exchanges, missed)
        return LATER

    def restore_exchanges(self, missed: Missed) -> None:
        for one in [] if self.progress is None else self.progress.outgoing:
            message = None if one.released else one.offset
            self.loaded.sender.messages.restore(Exchange(one.packet_id, one.qos, message))
        if self.progress is not None and self.progress.sent_before:
            self.loaded.sender.maybe_sent = MaybeSent(self.progress.sent_before, REPEATED)
        self.read(missed)

    def read(self, missed: Missed) -> None:
        """Read a page of what was missed; go on until that has overtaken what is brought."""
        serving, inbound = self.loaded, self.world.inbound
        if serving.is_ended:
            return
        for start, end in log_ranges([missed], _THE_PARTITION).values():
            for offset in range(start, min(end, start + _PAGE)):
                if serving.gets(inbound[offset], offset):
                    serving.sender.deliver(offset, inbound[offset].qos)
                missed.pass_by(0, offset)
        if not log_ranges([missed], _THE_PARTITION) and missed.follow([self.process.inbound]):
            self.proceed(missed.cursor)
        else:
            self.process.later(self.read, missed)

    def go_live(self, go_live: GoLive) -> Any:
        serving = self.loaded
        serving.become(SessionState.LIVE)
        if go_live.starts is not None:
            serving.floor = list(go_live.starts)
            for topic_filter, starts in serving.subscriptions.items():
                if serving.reads_behind:
                    continue
                serving.subscriptions[topic_filter] = latest(go_live.starts, starts)
            if serving.progress is not None:
                serving.progress.touch()
        serving.sender.progress = serving.progress
        serving.sender.attach(self.connection)
        serving.hear()
        if serving.behind is not None:
            serving.read_behind(serving.behind)


def _decoded(grant: Grant | None) -> Any:
    if grant is None or grant.session is None:
        return None
    return decode_session(json.dumps(grant.session).encode())


PERFORM: Final[dict[type, Callable[[Opening, Any], Any]]] = {
    ClaimSession: Opening.claim,
    LoadSession: Opening.load,
    Hold: Opening.hold,
    RecordSession: Opening.record,
    Save: Opening.save,
    Refuse: Opening.refuse,
    Welcome: Opening.welcome,
    RouteFilters: Opening.route,
    CatchUp: Opening.catch_up,
    GoLive: Opening.go_live,
}
