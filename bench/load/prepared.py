"""Records that a measurement needs, put into the log as a gateway would have written them.

Much faster than by clients, and the same records. The streaming application brings rows of them
into the tables, as always.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from confluent_kafka import Producer

from ingest.gateway.lake.table import TableReader
from launcher.paths import DataDirectory
from mqlake.clock import SystemClock
from mqlake.errors import OperationalError
from mqlake.identifiers import MessageIdentifiers, machine_number
from mqlake.log.admin import partition_count
from mqlake.log.contract import ANY_PARTITION
from mqlake.log.options import producer_options
from mqlake.records.messages import (
    HEADER_CLIENT_ID,
    HEADER_ID,
    HEADER_ORIGIN,
    INBOUND,
    SESSIONS,
    message_key,
    mqtt_header,
)
from mqlake.records.progress import ProgressRecord, encode_progress
from mqlake.records.sessions import (
    NEVER_EXPIRES,
    SessionRecord,
    StoredSubscription,
    encode_session,
    progress_key,
    session_key,
)
from mqlake.records.shards import Run, shard_of, stamp_headers
from mqlake.records.versions import HEADER_MQTT, Headers
from mqlake.tables.catalogue import MESSAGES, RETAINED
from mqlake.tables.catalogue import SESSIONS as SESSIONS_TABLE

TENANT: Final = "default"
_MQTT: Final = {
    retain: (HEADER_MQTT, mqtt_header(4, 1, retain=retain, dup=False)) for retain in (False, True)
}
_OF_PUBLISHER: Final = [(HEADER_CLIENT_ID, b"bench"), (HEADER_ORIGIN, b"local/gateway-1")]

TABLES_SECONDS: Final = 150.0
"""How long the tables may take to follow."""
LOOK_SECONDS: Final = 2.0
ANSWER_SECONDS: Final = 10.0

Offsets = dict[int, int]
"""Partition of `mqlake.inbound` -> offset of its last record."""


class _Record(NamedTuple):
    key: bytes
    value: bytes
    headers: Headers
    timestamp_ms: int
    partition: int = ANY_PARTITION


class PastMessage(NamedTuple):
    topic_name: str
    payload: bytes
    accepted_at_ms: int


def write_messages(
    bootstrap_servers: str, messages: Iterable[PastMessage], *, retain: bool = False
) -> Offsets:
    """Append messages of QoS 1 to `mqlake.inbound`; return where the last ones are.

    Raises:
        OperationalError: The log did not take them.
    """
    identifiers = MessageIdentifiers(SystemClock(), datacenter=0, machine=machine_number())
    records = (
        _Record(
            message_key(TENANT, message.topic_name),
            message.payload,
            [_MQTT[retain], (HEADER_ID, identifiers.next()), *_OF_PUBLISHER],
            message.accepted_at_ms,
        )
        for message in messages
    )
    return _write(bootstrap_servers, INBOUND, records)


def write_sessions(
    bootstrap_servers: str,
    client_ids: Iterable[str],
    cursor: list[int],
    prefix: str,
    subscriptions: int = 1,
    *,
    holder: Run | None = None,
    epoch: int = 1,
) -> None:
    """Append sessions to `mqlake.sessions`, of clients that are away unless a holder is given.

    Args:
        bootstrap_servers: Addresses of the log.
        client_ids: Clients that get a session each.
        cursor: Per partition of `mqlake.inbound` the next offset they are to get.
        prefix: Each subscribes to `<prefix>/<client identifier>/<number>/+`.
        subscriptions: How many each has.
        holder: The gateway that the clients are connected to.
        epoch: Under which they were held.

    Raises:
        OperationalError: The log did not take them.
    """
    now_ms = SystemClock().now_ms()
    run = holder or Run("gateway-1", "bench")
    headers = stamp_headers(run.incarnation, epoch)
    shards = partition_count(bootstrap_servers, SESSIONS, ANSWER_SECONDS)

    def records() -> Iterable[_Record]:
        for number, client_id in enumerate(client_ids):
            session = _session(f"{number:016x}", client_id, run, now_ms, is_held=holder is not None)
            session.subscriptions = [
                StoredSubscription(f"{prefix}/{client_id}/{one}/+", 1)
                for one in range(subscriptions)
            ]
            progress = ProgressRecord(session.session_id, cursor, settled=False)
            values = (
                # In the order in which a gateway lets go of a session: behind that of a session
                # without a holder, progress does not count.
                (progress_key(TENANT, client_id), encode_progress(progress)),
                (session_key(TENANT, client_id), encode_session(session)),
            )
            shard = shard_of(TENANT, client_id, shards)
            for key, value in values:
                yield _Record(key, value, headers, now_ms, shard)

    _write(bootstrap_servers, SESSIONS, records())


def _session(
    session_id: str, client_id: str, run: Run, now_ms: int, *, is_held: bool
) -> SessionRecord:
    return SessionRecord(
        session_id=session_id,
        tenant=TENANT,
        client_id=client_id,
        protocol_level=4,
        username=None,
        keep_alive=60,
        clean_start=False,
        session_expiry_interval=NEVER_EXPIRES,
        gateway=run.gateway,
        incarnation=run.incarnation,
        connected=is_held,
        connected_at_ms=now_ms - 60_000,
        disconnected_at_ms=None if is_held else now_ms,
        reason=None if is_held else "the client has disconnected",
    )


def await_messages(data_dir: Path, last: Mapping[int, int]) -> None:
    """Wait until the table `messages` goes up to these offsets."""
    query = f"SELECT log_partition, max(log_offset) FROM {MESSAGES.name} GROUP BY log_partition"  # noqa: S608

    def is_there(table: TableReader) -> bool:
        found = dict(row for rows in table.rows(query) for row in rows)
        return all(found.get(partition, -1) >= offset for partition, offset in last.items())

    _await_table(data_dir, MESSAGES.name, is_there)


def await_retained(data_dir: Path, last: Mapping[int, int]) -> None:
    """Wait until the table `retained` goes up to these offsets."""

    def is_there(table: TableReader) -> bool:
        found = table.next_offsets()
        return all(found.get(partition, 0) > offset for partition, offset in last.items())

    _await_table(data_dir, RETAINED.name, is_there)


def await_sessions(data_dir: Path, count: int) -> None:
    """Wait until the table `sessions` has `count` rows."""
    query = f"SELECT count(*) FROM {SESSIONS_TABLE.name}"  # noqa: S608

    def is_there(table: TableReader) -> bool:
        found: int = next(table.rows(query))[0][0]
        return found >= count

    _await_table(data_dir, SESSIONS_TABLE.name, is_there)


def _await_table(data_dir: Path, name: str, is_there: Callable[[TableReader], bool]) -> None:
    table = TableReader(DataDirectory(data_dir.absolute()).tables / name)
    deadline = time.monotonic() + TABLES_SECONDS
    while not (table.refresh() and is_there(table)):
        if time.monotonic() > deadline:
            raise OperationalError(
                f"the table {name} did not follow the log within {TABLES_SECONDS:.0f} s"
            )
        time.sleep(LOOK_SECONDS)


def _write(
    bootstrap_servers: str,
    log_topic: str,
    records: Iterable[_Record],
) -> Offsets:
    producer = Producer(producer_options(bootstrap_servers, "mqlake-bench", {"linger.ms": 20}))
    last: Offsets = {}
    errors: list[str] = []

    def reported(error: object, message: object) -> None:
        if error is not None:
            errors.append(str(error))
        else:
            last[message.partition()] = message.offset()  # type: ignore[attr-defined]

    for record in records:
        while True:
            try:
                producer.produce(
                    log_topic,
                    record.value,
                    record.key,
                    record.partition,
                    on_delivery=reported,
                    timestamp=record.timestamp_ms,
                    headers=record.headers,  # type: ignore[arg-type]
                )
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    if producer.flush(60.0) or errors:
        raise OperationalError(
            f"the log did not take the records: {errors[0] if errors else 'no answer'}"
        )
    return last
