"""The gateways of a site: each says twice a second that it is there, and holds its name by that.

Heard of through `mqlake.gateways`, and only the time since the last heartbeat counts, by our own
clock: clocks of machines differ. Our own heartbeat comes back the same way. While it does not, the
log is away or we were not running: no gateway can be heard then, and none is dead for that.

A name belongs to one run of a gateway. A run begins when the one before has left, has certainly
ended (same machine, no such process), or was silent for its lease; its *epoch* is one higher. So
one that was only paused finds a higher epoch when it goes on, and ends.

Each heartbeat says up to which version its gateway reads records. When all living ones read a newer
one than is in force, the first to see it writes it under `VERSION_KEY`: from there on it is in
force, for good, and a gateway that does not know it ends, or does not start.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from ingest.gateway.log.lease import HEARTBEAT_SECONDS, SILENT_SECONDS
from ingest.gateway.peers.heartbeats import Peer, decode_peer, decode_version, encode_version
from mqlake.clock import LogClock
from mqlake.errors import InvalidRecord, LogError, OperationalError
from mqlake.log.contract import BEGINNING, DELIVERY_SECONDS, LogFull, LogWriter
from mqlake.records.gateway_heartbeat import SERVING, decode_gateway_heartbeat
from mqlake.records.messages import GATEWAYS, NO_GATEWAY, RETIRING, VERSION_KEY, LogRecord
from mqlake.records.shards import Run
from mqlake.records.versions import OLDEST_WRITTEN, RECORD_VERSION, Headers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ingest.gateway.log.lease import Lease
    from ingest.gateway.peers.hosts import Host
    from ingest.gateway.peers.shared_words import Told
    from mqlake.clock import Clock
    from mqlake.log.contract import LogReader
    from mqlake.records.gateway_heartbeat import GatewayHeartbeat

logger = logging.getLogger(__name__)

CUT_OFF_SECONDS: Final = 2.0
"""Time stops when our own heartbeat has not come back for so long: one less than silent."""

GRACE_SECONDS: Final = 1.0
"""A lease is over for others so much later than for its holder: the holder stops first."""

CLOCK_WORDS: Final = 20
"""Heartbeats that our clock is judged by: one may wait for the log for long, hardly all of them."""

_HEADERS: Final[Headers] = []


class NameInUseError(OperationalError):
    """A gateway of this name is running."""


class _Said(NamedTuple):
    """A heartbeat of our own that has not come back."""

    at: float
    has_room: bool
    """The spare writer did not append it."""


@dataclass(frozen=True, slots=True)
class HeartbeatLog:
    """How heartbeats go to the log and come back.

    Attributes:
        writer: Appends our own, as all that this gateway writes: records that wait for the log hold
            it up, too.
        spare: Appends it when messages have filled that.
        reader: Not started yet.
    """

    writer: LogWriter
    spare: LogWriter
    reader: LogReader


class Peers:
    """The other gateways of the site.

    Args:
        log: Writers and reader of heartbeats.
        me: This run of this gateway.
        clock: Clock whose monotonic time counts.
        lease: Lease of this gateway; others have one as long.
        host: Tells runs of this machine apart.
        use_version: Called with the version of records that is in force, whenever that changes.
        fail: Called with the reason why this gateway has to end: its name is another's, or it does
            not know the version in force.
        records: The newest version of records that this gateway knows.

    Attributes:
        gateway_epoch: Epoch of this run, one higher than that of the run before under this name.
        version: Version of records, in force for all gateways; never goes back.
        on_other: Take records there of others than gateways.
        on_word: Gets each new heartbeat of another gateway: its name, run and `fan_out`.
    """

    def __init__(
        self,
        log: HeartbeatLog,
        me: Run,
        clock: Clock,
        lease: Lease,
        host: Host,
        use_version: Callable[[int], None],
        fail: Callable[[OperationalError], None],
        records: int = RECORD_VERSION,
    ) -> None:
        self._writer = log.writer
        self._spare = log.spare
        self._reader = log.reader
        self._me = me
        self._clock = clock
        self._lease = lease
        self._host = host
        self._spoke_at = -HEARTBEAT_SECONDS
        self._has_left = False
        self._state = SERVING
        self._echo_at = clock.monotonic()
        self._log_clock = LogClock(clock)
        self._clock_ahead_ms: deque[int] = deque(maxlen=CLOCK_WORDS)
        self._is_read = False
        self._said: dict[int, _Said] = {}
        self._number = 0
        self._peers: dict[str, Peer] = {}
        self._named_from = 0
        self.gateway_epoch = 1
        self._records = records
        self.version = OLDEST_WRITTEN
        self._use_version = use_version
        self._fail = fail
        self.on_other: Sequence[Callable[[LogRecord], None]] = ()
        self.on_word: Callable[[str, str, object], None] = lambda *_: None
        lease.on_doubt = self._speak_at_once
        use_version(self.version)

    async def open(self) -> None:
        """Begin to listen, and take the name.

        Raises:
            LogError: The log cannot be read.
            NameInUseError: Another gateway of this name is there.
            OperationalError: The others write records that this one does not know.
        """
        await self._take_name()
        self._echo_at = self._clock.monotonic()
        await self._reader.start(GATEWAYS, {0: BEGINNING}, self._receive, self._report)

    async def close(self) -> None:
        await self._reader.close()

    def send_heartbeat(self, heartbeat: GatewayHeartbeat) -> None:
        """Say that this gateway is there, when it is time to and it has not left.

        Args:
            heartbeat: Its state; members about this run are set here.
        """
        now = self._clock.monotonic()
        if self._has_left or now - self._spoke_at < HEARTBEAT_SECONDS:
            return
        self._spoke_at = now
        self._state = heartbeat.state
        self._number += 1
        heartbeat.v = RECORD_VERSION
        heartbeat.gateway = self._me.gateway
        heartbeat.incarnation = self._me.incarnation
        heartbeat.epoch = self.gateway_epoch
        heartbeat.number = self._number
        heartbeat.process = self._host.identity
        heartbeat.records = self._records
        heartbeat.at = self._clock.now_ms()
        has_room = self._append(self._me.gateway.encode(), heartbeat.encode())
        self._said[self._number] = _Said(now, has_room)
        self._raise_version()

    def _speak_at_once(self) -> None:
        """Send the next heartbeat with the next tick: when it comes back, doubt is over."""
        self._spoke_at = -HEARTBEAT_SECONDS

    def leave(self) -> None:
        """Say that this gateway is gone."""
        self._has_left = True
        self._append(self._me.gateway.encode(), None)

    @property
    def named_from(self) -> int:
        """Return the offset in `mqlake.gateways` at which this run began."""
        return self._named_from

    @property
    def is_read(self) -> bool:
        """Tell whether all records before this gateway's first heartbeat are known."""
        return self._is_read

    @property
    def is_heard(self) -> bool:
        """Tell whether the log has given back the last heartbeat of this gateway."""
        return self._number not in self._said

    @property
    def are_there(self) -> bool:
        """Tell whether there is any other gateway."""
        return any(
            self.is_alive(name, one.heartbeat.incarnation) for name, one in self._peers.items()
        )

    def log_now_ms(self) -> int:
        """Return the time by the log's clock, which is the same for all gateways."""
        return self._log_clock.now_ms()

    @property
    def clock_ahead_seconds(self) -> float:
        """How far this gateway's clock is ahead of the log's, by the fastest recent heartbeat."""
        return max(self._clock_ahead_ms, default=0) / 1000

    def owners(self) -> list[str]:
        """Return which gateways can own shards, this one included: they are heard, and serve."""
        now = self._now()
        heard = {
            name: peer.heartbeat.state
            for name, peer in self._peers.items()
            if now - peer.heard_at < SILENT_SECONDS and peer.heartbeat.state != RETIRING
        }
        if not self._has_left:
            heard[self._me.gateway] = self._state
        serving = [name for name, state in heard.items() if state == SERVING]
        return sorted(serving or heard)

    def address(self, gateway: str, listener_kind: str) -> str:
        """Return a listener's address for clients, of a gateway that is heard; "" if unknown."""
        peer = self._peers.get(gateway)
        if peer is None or self.is_silent(Run(gateway, peer.heartbeat.incarnation)):
            return ""
        return peer.heartbeat.addresses.get(listener_kind, "")

    def shared(self) -> list[Told]:
        """Return the demand of each other gateway that is heard on the limits that all share."""
        return [
            peer.shared
            for name, peer in self._peers.items()
            if not self.is_silent(Run(name, peer.heartbeat.incarnation))
        ]

    def is_alive(self, gateway: str, incarnation: str) -> bool:
        """Tell whether that run of a gateway has been heard of within its lease."""
        return not self.is_dead(Run(gateway, incarnation))

    def is_dead(self, run: Run) -> bool:
        """Tell whether a run has left, or its lease is over. None is dead before all was read.

        A process that has certainly ended serves no client: its lease is not waited for.
        """
        if not self.is_silent(run):  # no lease is shorter
            return False
        if self._is_unheard(run, self._lease.seconds + GRACE_SECONDS):
            return True
        return self._host.is_gone(self._peers[run.gateway].heartbeat.process)

    def is_spent(self, run: Run) -> bool:
        """Tell whether nothing of a dead run can come into the log any more.

        Records that it had handed to its client library while it held its lease are sent when it
        goes on, unless that gives them up before. A process that has certainly ended sends nothing;
        records that it has sent come before its lease is over.
        """
        if not self._is_unheard(run, self._lease.seconds + GRACE_SECONDS):
            return False
        peer = self._peers.get(run.gateway)
        if peer is None or peer.heartbeat.incarnation != run.incarnation:
            return True  # it has left, or another run has its name, which had waited for that
        last = self._lease.seconds + GRACE_SECONDS + DELIVERY_SECONDS
        return self._host.is_gone(peer.heartbeat.process) or self._is_unheard(run, last)

    def is_silent(self, run: Run) -> bool:
        """Tell whether a run was not heard for so long that its shards go to others."""
        return self._is_unheard(run, SILENT_SECONDS)

    def _is_unheard(self, run: Run, seconds: float) -> bool:
        if run.gateway == self._me.gateway:
            return run.incarnation != self._me.incarnation
        if not self._is_read:
            return False
        peer = self._peers.get(run.gateway)
        if peer is None or peer.heartbeat.incarnation != run.incarnation:
            return True
        return self._now() - peer.heard_at >= seconds

    def _now(self) -> float:
        """Return the time up to which others would have been heard."""
        now = self._clock.monotonic()
        return now if now - self._echo_at < CUT_OFF_SECONDS else self._echo_at

    async def _take_name(self) -> None:
        """Wait until no other process can have the name."""
        self._named_from = (await self._reader.end_offsets(GATEWAYS))[0]
        words = await self._reader.read_compacted(GATEWAYS)
        for key, record in words.items():
            if key.startswith(NO_GATEWAY) and key != VERSION_KEY:
                self._tell_others(record)
        if VERSION_KEY in words and (reason := self._take_version(words[VERSION_KEY])):
            raise OperationalError(reason)
        found = words.get(self._me.gateway.encode())
        before = None if found is None else self._decode(found)
        if before is None:
            return
        self.gateway_epoch = before.heartbeat.epoch + 1
        began_at = self._clock.monotonic()
        while not self._host.is_gone(before.heartbeat.process):
            if self._clock.monotonic() - began_at >= self._lease.seconds + GRACE_SECONDS:
                return
            await asyncio.sleep(HEARTBEAT_SECONDS / 2)
            now = (await self._reader.read_compacted(GATEWAYS)).get(self._me.gateway.encode())
            if now is None:
                return
            if found is not None and now.offset != found.offset:
                raise NameInUseError(
                    f"another gateway named {self._me.gateway} is running: each needs a name of "
                    "its own (MQLAKE_GATEWAY_NAME)"
                )

    def _hear_ourselves(self, record: LogRecord) -> None:
        """Let time go on; after a silence of all, living ones have most of their time again."""
        now = self._clock.monotonic()
        try:
            found = decode_gateway_heartbeat(record.value)
        except InvalidRecord:
            return
        if found.incarnation != self._me.incarnation:
            # Of two that took the name at once the first one to say so has it.
            least = self.gateway_epoch if self._is_read else self.gateway_epoch - 1
            if record.offset >= self._named_from and found.epoch > least:
                name = self._me.gateway
                self._fail(OperationalError(f"another gateway named {name} has started"))
            return
        said = self._said.pop(found.number, None)
        if said is None:
            return
        for number in [one for one in self._said if one < found.number]:
            del self._said[number]
        if now - self._echo_at >= CUT_OFF_SECONDS:
            for peer in self._peers.values():
                if self._echo_at - peer.heard_at < self._lease.seconds + GRACE_SECONDS:
                    peer.heard_at = max(peer.heard_at, now - HEARTBEAT_SECONDS)
        self._echo_at = now
        self._log_clock.heard(record.timestamp_ms)
        self._clock_ahead_ms.append(found.at - record.timestamp_ms)
        self._lease.renew(said.at, record.timestamp_ms, can_write=said.has_room)
        if not self._is_read:
            self._is_read = True
            for peer in self._peers.values():
                if peer.read_at_ms is not None:
                    peer.heard_at = now - max(0, record.timestamp_ms - peer.read_at_ms) / 1000

    def _raise_version(self) -> None:
        """Say that a newer version is in force, if all that live know it.

        One that is about to start reads that before its own first heartbeat comes back, and ends.
        """
        if not self._is_read:
            return
        known = [
            peer.heartbeat.records
            for name, peer in self._peers.items()
            if self.is_alive(name, peer.heartbeat.incarnation)
        ]
        version = min([self._records, *known])
        if version > self.version:
            self._append(VERSION_KEY, encode_version(version, self._me.gateway))

    def _take_version(self, record: LogRecord) -> str:
        """Note which version is in force; return why this gateway cannot go on, or ""."""
        try:
            version, gateway = decode_version(record.value)
        except InvalidRecord as exc:
            logger.warning("record of a version ignored", extra={"fields": {"reason": str(exc)}})
            return ""
        if version > self._records:
            return (
                f"the gateways of this site write records of version {version} since {gateway} has "
                f"said so, this release knows up to {self._records}: start {self._me.gateway} in "
                f"a release that knows version {version}"
            )
        if version > self.version:
            self.version = version
            self._use_version(version)
        return ""

    def _append(self, key: bytes, value: bytes | None) -> bool:
        """Append a record of ours; return whether the queue of all records had room for it."""
        has_room = True
        try:
            try:
                self._writer.append(GATEWAYS, key, value, _HEADERS, _ignore, partition=0)
            except LogFull:
                has_room = False
                self._spare.append(GATEWAYS, key, value, _HEADERS, _ignore, partition=0)
        except LogError as error:
            logger.debug("not heard", extra={"fields": {"reason": str(error)}})
        return has_room

    def _receive(self, records: list[LogRecord]) -> None:
        for record in records:
            if record.key == VERSION_KEY:
                if reason := self._take_version(record):
                    self._fail(OperationalError(reason))
                continue
            if record.key is not None and record.key.startswith(NO_GATEWAY):
                if record.offset >= self._named_from:  # the others are taken when it starts
                    self._tell_others(record)
                continue
            name = (record.key or b"").decode(errors="replace")
            if name == self._me.gateway:
                self._hear_ourselves(record)
                continue
            if record.value is None:
                self._peers.pop(name, None)
                continue
            self._lease.heard_log(record.timestamp_ms)
            peer = self._decode(record)
            if peer is None:
                continue
            known = self._peers.get(name)
            said = peer.heartbeat
            if known is None or said.epoch >= known.heartbeat.epoch:
                self._peers[name] = peer
                if self._is_read:
                    self.on_word(name, said.incarnation, said.fan_out)

    def _tell_others(self, record: LogRecord) -> None:
        for take in self.on_other:
            take(record)

    def _decode(self, record: LogRecord) -> Peer | None:
        read_at_ms = None if self._is_read else record.timestamp_ms
        try:
            return decode_peer(record.value, self._clock.monotonic(), read_at_ms)
        except InvalidRecord as exc:
            logger.warning("gateway record ignored", extra={"fields": {"reason": str(exc)}})
            return None

    def _report(self, error: LogError) -> None:
        logger.warning(
            "heartbeats of gateways cannot be read", extra={"fields": {"reason": str(error)}}
        )


def _ignore(_partition: int, _offset: int, _error: LogError | None) -> None:
    pass
