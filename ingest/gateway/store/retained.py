"""The retained messages of all tenants by shard, in topic order, on the gateway's disk.

A topic's messages are all in one shard; the last of them has the greatest rank
(`mqlake.records.retained`).
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple
from zlib import crc32

from ingest.gateway.store.database import Database
from ingest.gateway.store.scanning import FilterScan, just_after
from mqlake.clock import Clock

_SIZE: Final = (
    "(length({0}.payload) + length(CAST({0}.topic AS BLOB)) + ifnull(length({0}.properties), 0))"
)
_SCHEMA: Final = """
CREATE TABLE retained (
    tenant TEXT NOT NULL,
    topic TEXT NOT NULL,
    payload BLOB NOT NULL,
    qos INTEGER NOT NULL,
    properties BLOB,
    client_id TEXT NOT NULL,
    received_at_ms INTEGER NOT NULL,
    expires_at_ms INTEGER,
    shard INTEGER NOT NULL,
    rank INTEGER NOT NULL,
    UNIQUE (shard, tenant, topic)
);
CREATE INDEX retained_expiry ON retained (expires_at_ms) WHERE expires_at_ms IS NOT NULL;
-- What was removed, so that an older message that comes later does not return.
CREATE TABLE removed (
    shard INTEGER NOT NULL,
    tenant TEXT NOT NULL,
    topic TEXT NOT NULL,
    rank INTEGER NOT NULL,
    forget_at_ms INTEGER NOT NULL,
    PRIMARY KEY (shard, tenant, topic)
) WITHOUT ROWID;
CREATE INDEX removed_forget ON removed (forget_at_ms);
-- How much there is; to go through all of it each time would take seconds.
CREATE TABLE retained_usage (
    shard INTEGER NOT NULL,
    tenant TEXT NOT NULL,
    messages INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    PRIMARY KEY (shard, tenant)
) WITHOUT ROWID;
-- Up to where shards are complete. Nothing of a shard: it is not, or its rows are to be dropped.
CREATE TABLE retained_places (
    partition INTEGER PRIMARY KEY,
    shard INTEGER NOT NULL,
    offset INTEGER NOT NULL,
    timestamp_ms INTEGER NOT NULL,
    key BLOB NOT NULL
);
CREATE TRIGGER retained_added AFTER INSERT ON retained BEGIN
    INSERT INTO retained_usage VALUES (new.shard, new.tenant, 1, {new})
    ON CONFLICT DO UPDATE SET messages = messages + 1, bytes = bytes + excluded.bytes;
END;
CREATE TRIGGER retained_replaced AFTER UPDATE ON retained BEGIN
    UPDATE retained_usage SET bytes = bytes + {new} - {old}
    WHERE shard = new.shard AND tenant = new.tenant;
END;
CREATE TRIGGER retained_removed AFTER DELETE ON retained BEGIN
    UPDATE retained_usage SET messages = messages - 1, bytes = bytes - {old}
    WHERE shard = old.shard AND tenant = old.tenant;
END;
"""
_CREATE: Final = _SCHEMA.format(new=_SIZE.format("new"), old=_SIZE.format("old"))
_COLUMNS: Final = (
    "tenant, topic, payload, qos, properties, client_id, received_at_ms, expires_at_ms, shard, rank"
)
_PUT: Final = f"""
INSERT INTO retained ({_COLUMNS})
SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10
WHERE NOT EXISTS (
    SELECT 1 FROM removed
    WHERE shard = ?9 AND tenant = ?1 AND topic = ?2 AND rank >= ?10
)
ON CONFLICT (shard, tenant, topic) DO UPDATE SET
    payload = excluded.payload, qos = excluded.qos, properties = excluded.properties,
    client_id = excluded.client_id, received_at_ms = excluded.received_at_ms,
    expires_at_ms = excluded.expires_at_ms, rank = excluded.rank
WHERE excluded.rank > retained.rank
"""  # noqa: S608 - the columns are the constant above
_TOPIC: Final = "shard = ?1 AND tenant = ?2 AND topic = ?3"
_COUNT: Final = "SELECT ifnull(sum(messages), 0) FROM retained_usage WHERE shard = ?"
_USAGE_OF_ALL: Final = "SELECT ifnull(sum(messages), 0), ifnull(sum(bytes), 0) FROM retained_usage"
_USAGE: Final = "SELECT messages, bytes FROM retained_usage WHERE shard = ? AND tenant = ?"
_SIZE_OF: Final = f"SELECT {_SIZE.format('retained')} FROM retained WHERE {_TOPIC}"  # noqa: S608
_GET: Final = f"SELECT {_COLUMNS} FROM retained WHERE {_TOPIC}"  # noqa: S608
_REMOVE: Final = f"DELETE FROM retained WHERE {_TOPIC} AND rank < ?4"  # noqa: S608
_NOTE_REMOVED: Final = f"""
INSERT INTO removed (shard, tenant, topic, rank, forget_at_ms)
SELECT ?1, ?2, ?3, ?4, ?5
WHERE NOT EXISTS (SELECT 1 FROM retained WHERE {_TOPIC})
ON CONFLICT (shard, tenant, topic) DO UPDATE SET
    rank = excluded.rank, forget_at_ms = excluded.forget_at_ms
WHERE excluded.rank > removed.rank
"""  # noqa: S608
_SCAN: Final = (
    "SELECT topic, rowid FROM retained WHERE shard = ? AND tenant = ? AND topic >= ? ORDER BY topic"
)
_DROP: Final = (
    "DELETE FROM retained WHERE rowid IN (SELECT rowid FROM retained WHERE shard = ? LIMIT ?)"
)
_FORGET_SHARD: Final = (
    "DELETE FROM removed WHERE (shard, tenant, topic) IN"
    " (SELECT shard, tenant, topic FROM removed WHERE shard = ? LIMIT ?)"
)

_NOTE_PLACE: Final = "INSERT OR REPLACE INTO retained_places VALUES (?, ?, ?, ?, ?)"
_PLACES: Final = "SELECT partition, offset, timestamp_ms, key FROM retained_places WHERE shard = ?"
_FORGET_PLACES: Final = "DELETE FROM retained_places WHERE shard = ?"
_SHARDS: Final = (
    "SELECT shard FROM retained_places UNION SELECT shard FROM removed"
    " UNION SELECT shard FROM retained_usage WHERE messages > 0"
)

RETAINED_FILE: Final = "retained.sqlite"

MEANING: Final = 1
"""Grows when the same rows would mean something else, or the same record another row."""

MAX_LOOKED_AT: Final = 700
"""Topics that one page looks at, matching or not; keeps a page below 2 ms."""
MAX_PAGE_BYTES: Final = 256 * 1024
"""Payloads and properties of a page, the last of them beyond."""

_SEEK_COST: Final = 12
"""Cost of a seek, in topics looked at."""
_STEPS_BEFORE_SEEK: Final = 8
"""Topics passed one by one before a seek: the next match is often the next row."""


class RetainedRow(NamedTuple):
    """A retained message, or the removal of one."""

    tenant: str
    topic_name: str
    payload: bytes | None
    """None or empty removes the topic's message. [MQTT5-3.3.1-6] [MQTT311-3.3.1-10]"""
    qos: int
    properties: bytes | None
    """JSON as in the `properties` header; None without any."""
    client_id: str
    received_at_ms: int
    expires_at_ms: int | None
    shard: int
    rank: int


class LogPlace(NamedTuple):
    """A record of `mqlake.inbound`, by which it shows whether the log is still the same one."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes


class StoredPage(NamedTuple):
    rows: list[RetainedRow]
    position: str | None
    """Beginning of the next page; None after the last. Rows may be few or none before it."""


def open_kept(directory: Path | None, gateway: str, shards: int, boot: str) -> Database:
    """Open the database of the last run, or a new one.

    The log is known by the records at which shards were left (`LogPlace`).

    Args:
        directory: Folder of the file; None keeps everything in memory.
        gateway: Name of the gateway.
        shards: Number of shards of the retained messages.
        boot: Identifier of the machine's boot; "" is none: then nothing is kept.

    Raises:
        OperationalError: The directory cannot be written.
    """
    schema = f"{MEANING}/{crc32(_CREATE.encode()):08x}"
    identity = {"schema": schema, "gateway": gateway, "shards": str(shards), "boot": boot}
    return Database(directory, RETAINED_FILE, identity if boot else None)


class RetainedStore:
    """Topic -> the last retained message.

    A row counts only when its rank is above the last one of its topic, so snapshot, catching up
    and live messages may come in any order and more than once.

    Args:
        database: Database of the store; one store in each.
        clock: Tells which messages have expired.
        remember_removed_seconds: How long a removal still outweighs older messages; longer than
            loading takes and than deliveries are repeated.
    """

    def __init__(
        self, database: Database, clock: Clock, *, remember_removed_seconds: float = 900.0
    ) -> None:
        self._database = database
        self._clock = clock
        self._remember_removed_ms = round(remember_removed_seconds * 1000)
        if not database.is_kept:
            database.create(_CREATE)

    def apply(self, row: RetainedRow) -> bool:
        """Take one message or removal; return False when a later one is known."""
        if row.payload:
            return self.load([row]) > 0
        # The row that it leaves is later.
        key = (row.shard, row.tenant, row.topic_name)
        return self._remove(key, row.rank, below=row.rank)

    def apply_all(self, rows: Iterable[RetainedRow]) -> None:
        """Take messages and removals; a message costs about 20 microseconds, by its topic."""
        messages = []
        with self._database.batch():
            for row in rows:
                if row.payload:
                    messages.append(row)
                else:
                    self.apply(row)
            self.load(messages)

    def load(self, rows: Iterable[RetainedRow]) -> int:
        """Take many messages; return how many were news. Removals among them are left out."""
        with self._database.batch():
            return self._database.write_many(_PUT, (row for row in rows if row.payload))

    def get(self, shard: int, tenant: str, topic_name: str) -> RetainedRow | None:
        """Return a topic's retained message, unless it has expired."""
        found = self._database.row(_GET, (shard, tenant, topic_name))
        return None if found is None else self._unexpired(found)

    def page(
        self,
        shard: int,
        tenant: str,
        topic_filter: str,
        position: str | None = None,
        *,
        limit: int = 100,
        max_bytes: int = MAX_PAGE_BYTES,
    ) -> StoredPage:
        """Return the next matching messages of a shard in the order of their topics.

        Args:
            shard: Which.
            tenant: Whose messages.
            topic_filter: A valid filter without `$share/<name>/`.
            position: `StoredPage.position` of the page before; None begins.
            limit: Most rows to return.
            max_bytes: Bytes of payloads and properties; the row that reaches it is the last.

        Changes between two pages are seen when they are behind the position.
        """
        scan = FilterScan(topic_filter)
        at: str | None = scan.start if position is None else position
        now_ms = self._clock.now_ms()
        rows: list[RetainedRow] = []
        left = MAX_LOOKED_AT
        bytes_left = max_bytes
        while at is not None and left > 0 and len(rows) < limit and bytes_left > 0:
            left -= _SEEK_COST
            steps = 0
            with self._database.scan(_SCAN, (shard, tenant, at)) as topics:
                for topic_name, number in topics:
                    left -= 1
                    if topic_name < at:
                        steps += 1
                        if steps > _STEPS_BEFORE_SEEK:
                            break
                        continue
                    steps = 0
                    at = scan.seek(topic_name)
                    if at is None:
                        break
                    if at == topic_name:
                        at = just_after(topic_name)
                        row = self._at(number, now_ms)
                        if row is not None:
                            rows.append(row)
                            bytes_left -= len(row.payload or b"") + len(row.properties or b"")
                    if left <= 0 or len(rows) == limit or bytes_left <= 0:
                        break
                else:
                    at = None
        return StoredPage(rows, at)

    def purge(self, *, limit: int = 100) -> int:
        """Remove expired messages and forget old removals; return how many, at most `limit`.

        Fewer than the limit: nothing is left to purge now.
        """
        now_ms = self._clock.now_ms()
        expired = self._database.rows(
            "SELECT shard, tenant, topic, rank FROM retained"
            " WHERE expires_at_ms <= ? ORDER BY expires_at_ms LIMIT ?",
            (now_ms, limit),
        )
        with self._database.batch():
            for *key, rank in expired:
                # As a removal just after it: an older message must not come back.
                self._remove(tuple(key), rank, below=rank + 1)
            forgotten = self._database.write(
                "DELETE FROM removed WHERE (shard, tenant, topic) IN (SELECT"
                " shard, tenant, topic FROM removed WHERE forget_at_ms <= ? LIMIT ?)",
                (now_ms, limit - len(expired)),
            )
        return len(expired) + forgotten

    def next_expiry_ms(self) -> int | None:
        """Return when the next message expires."""
        found = self._database.row(
            "SELECT min(expires_at_ms) FROM retained WHERE expires_at_ms IS NOT NULL"
        )
        expires_at_ms: int | None = found[0] if found else None
        return expires_at_ms

    def count(self, shard: int) -> int:
        """Return how many messages a shard has; expired ones count until they are purged."""
        found = self._database.row(_COUNT, (shard,))
        return 0 if found is None else int(found[0])

    def usage(self, shards: Iterable[int], tenant: str) -> tuple[int, int]:
        """Return how many messages of a tenant shards have, and their bytes."""
        found = [self._database.row(_USAGE, (shard, tenant)) or (0, 0) for shard in shards]
        return sum(one[0] for one in found), sum(one[1] for one in found)

    def usage_of_all(self) -> tuple[int, int]:
        """Return how many messages there are here, and their bytes."""
        found = self._database.row(_USAGE_OF_ALL)
        return (0, 0) if found is None else (int(found[0]), int(found[1]))

    def size(self, shard: int, tenant: str, topic_name: str) -> int | None:
        """Return the size of a topic's message in bytes, None: nothing is retained."""
        found = self._database.row(_SIZE_OF, (shard, tenant, topic_name))
        return None if found is None else int(found[0])

    def shards(self) -> set[int]:
        """Return the shards of which there is anything."""
        return {shard for (shard,) in self._database.rows(_SHARDS)}

    def places(self, shard: int) -> dict[int, LogPlace]:
        """Return by partition the last record up to which a shard is complete.

        Of a partition that is left out nothing is known to be here. Empty: the shard is not
        complete.
        """
        found = self._database.rows(_PLACES, (shard,))
        return {place.partition: place for place in map(LogPlace._make, found)}

    def note_places(self, shard: int, places: Iterable[LogPlace]) -> None:
        """Note that a shard has all up to some records, and these."""
        rows = ((partition, shard, *rest) for partition, *rest in places)
        self._database.write_many(_NOTE_PLACE, rows)

    def forget_places(self, shard: int) -> None:
        """Note that a shard is not complete."""
        self._database.write(_FORGET_PLACES, (shard,))

    def drop(self, shard: int, *, limit: int = 250) -> bool:
        """Forget some rows of a shard; False when nothing is left."""
        with self._database.batch():
            dropped = self._database.write(_DROP, (shard, limit))
            forgotten = self._database.write(_FORGET_SHARD, (shard, limit))
        return dropped + forgotten > 0

    def _remove(self, key: tuple[int, str, str], rank: int, *, below: int) -> bool:
        """Remove the row below a rank; nothing up to the other one is to come back."""
        self._database.write(_REMOVE, (*key, below))
        forget_at_ms = self._clock.now_ms() + self._remember_removed_ms
        return self._database.write(_NOTE_REMOVED, (*key, rank, forget_at_ms)) > 0

    def _at(self, number: int, now_ms: int) -> RetainedRow | None:
        found = self._database.row(
            f"SELECT {_COLUMNS} FROM retained WHERE rowid = ?",  # noqa: S608
            (number,),
        )
        return None if found is None else self._unexpired(found, now_ms)

    def _unexpired(self, found: tuple[Any, ...], now_ms: int | None = None) -> RetainedRow | None:
        row = RetainedRow._make(found)
        if row.expires_at_ms is not None:
            if now_ms is None:
                now_ms = self._clock.now_ms()
            if row.expires_at_ms <= now_ms:
                return None
        return row
