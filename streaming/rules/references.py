"""Reference tables: writes them at requests of the API, one Delta table each; reads them for rules.

A request is carried out once: its number is the transaction of the commit that it makes, so one
that a killed application had carried out and not answered is only answered. Each version is a
commit, whose `userMetadata` describes it.
"""

import json
import logging
import shutil
import threading
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final, Protocol

from delta.tables import DeltaTable
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from mqlake.clock import Clock
from mqlake.errors import InvalidRecord
from mqlake.records.messages import RULES
from mqlake.records.references import (
    UPLOADS,
    Columns,
    ReferenceKey,
    ReferenceRequest,
    ReferenceState,
    decode_reference_request,
    decode_reference_state,
    encode_reference_state,
    reference_key,
    reference_table,
    reference_table_path,
)
from mqlake.records.rule_facts import Fact, keep, read_fact
from mqlake.records.rules import Kind
from rules.errors import RuleError
from rules.sql.quoting import quoted
from streaming.engine.spark import HISTORY_POOL, small_session, use_pool
from streaming.jvm.bridge import JvmError, forget_delta_table
from streaming.rules.log import RuleRecord
from streaming.settings.spark import StreamingSettings

logger = logging.getLogger(__name__)

READ_SECONDS: Final = 0.5
ATTEMPTS: Final = 3
RETRY_SECONDS: Final = 1.0
FORGOTTEN_SECONDS: Final = 3_600.0
"""An upload as old as this that no request names: the API died before it could ask."""
VACUUM_SECONDS: Final = 24 * 3_600.0
_MOST_ERROR: Final = 300
_PROPERTIES: Final = {
    # Earlier versions can be read, and gone back to, for so long.
    "delta.deletedFileRetentionDuration": "interval 30 days",
    "delta.logRetentionDuration": "interval 30 days",
}

Name = tuple[str, str]
"""Tenant and identifier."""


class ReferenceLog(Protocol):
    """The part of a log that `References` needs; `streaming.rules.log.RuleLog` has it."""

    def read(self, timeout_seconds: float) -> list[RuleRecord]: ...

    def is_caught_up(self) -> bool: ...

    def write(self, records: Iterable[tuple[bytes, bytes | None]]) -> None: ...

    def close(self) -> None: ...


def relation(
    spark: SparkSession, settings: StreamingSettings, tenant: str, reference: str
) -> DataFrame:
    """Return the rows of a reference table.

    Joined with a stream, each batch has the newest version of them.

    Raises:
        RuleError: There is no such table.
    """
    path = reference_table_path(settings.data_dir.absolute(), tenant, reference)
    if not DeltaTable.isDeltaTable(spark, str(path)):
        raise RuleError(
            f"there is no reference table {reference!r}",
            fragment=reference,
            hint="bin/mqlake references list shows those there are",
        )
    return spark.read.format("delta").load(str(path))


class References:
    """Follows requests and carries them out; `step` does due work.

    Args:
        spark: Any session.
        settings: Settings with the data directory.
        log: Log that has the requests.
        clock: For work that is due now and then.
        retry_seconds: Pause behind the first attempt; twice as long behind each other.
    """

    def __init__(
        self,
        spark: SparkSession,
        settings: StreamingSettings,
        log: ReferenceLog,
        clock: Clock,
        *,
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        self._spark = small_session(spark)
        self._data_dir = settings.data_dir.absolute()
        self._log = log
        self._clock = clock
        self._waiting: list[ReferenceRequest] = []
        self._lock = threading.Lock()
        self._states: dict[Name, ReferenceState] = {}
        self._is_ready = False
        self._vacuum_at = clock.monotonic() + VACUUM_SECONDS
        self._retry_seconds = retry_seconds
        self._wait = threading.Event().wait

    def run(self, stopping: threading.Event) -> None:
        """Step until `stopping` is set; for a thread of its own."""
        use_pool(self._spark, HISTORY_POOL)
        self._wait = stopping.wait
        while not stopping.is_set():
            try:
                self.step()
            except Exception as error:
                # Even when something is wrong with one table, the next request must find this loop.
                if not stopping.is_set():
                    fields = {"reason": str(error)}
                    logger.exception("reference tables not changed", extra={"fields": fields})
                stopping.wait(RETRY_SECONDS)
        self._log.close()

    def columns(self, tenant: str) -> dict[str, Columns]:
        """Return the columns of each table of a tenant that rules can join; safe in any thread."""
        with self._lock:
            return {
                reference: state.columns
                for (of, reference), state in sorted(self._states.items())
                if of == tenant and state.version is not None
            }

    def step(self, timeout_seconds: float = READ_SECONDS) -> None:
        """Read new records and carry out their requests.

        Raises:
            LogError: The answer to a request could not be written; the next step writes it.
        """
        for record in self._log.read(timeout_seconds):
            if record.log_topic == RULES:
                self._take(record.key, record.value)
        if not self._is_ready:
            if not self._log.is_caught_up():
                return
            self._is_ready = True
            self._begin()
        while self._waiting:
            self._carry_out(self._waiting[0])
            del self._waiting[0]
        if self._clock.monotonic() >= self._vacuum_at:
            self._vacuum_at = self._clock.monotonic() + VACUUM_SECONDS
            self._vacuum()

    def _take(self, key: bytes, value: bytes | None) -> None:
        try:
            match read_fact(key, value):
                case Fact(Kind.REQUEST, name) as fact:
                    request = fact.content(decode_reference_request)
                    if request is None:
                        self._forget_requests(name)
                    else:
                        self._waiting.append(request)
                case Fact(Kind.STATE, name, None):
                    self._forget_state(name)
                case Fact(Kind.STATE, name) as fact if not self._is_ready:
                    # Later on it is one that was written here.
                    with self._lock:
                        keep(self._states, name, fact.content(decode_reference_state))
        except InvalidRecord as error:
            fields = {"key": key.decode(errors="replace"), "reason": str(error)}
            logger.warning("record of reference tables ignored", extra={"fields": fields})

    def _forget_requests(self, name: Name) -> None:
        self._waiting = [one for one in self._waiting if (one.tenant, one.reference) != name]

    def _forget_state(self, name: Name) -> None:
        """Count from 1 again for a deleted table, whose tenant is deleted."""
        known = self._states.get(name)
        if known is not None and known.version is None:
            with self._lock:
                del self._states[name]

    def _begin(self) -> None:
        """Make tables known by name, and forget uploads that no request names."""
        for (tenant, reference), state in self._states.items():
            if state.version is not None:
                self._name_table(tenant, reference)
        named = {request.upload for request in self._waiting}
        now = self._clock.now_ms() / 1000
        for path in (self._data_dir / UPLOADS).glob("*.jsonl"):
            try:
                if path.name not in named and now - path.stat().st_mtime > FORGOTTEN_SECONDS:
                    path.unlink()
            except OSError:
                continue  # it is gone already, or stays

    def _carry_out(self, request: ReferenceRequest) -> None:
        name = (request.tenant, request.reference)
        before = self._states.get(name)
        if before is None:
            before = ReferenceState(request.tenant, request.reference, 0, "deleted")
        if request.number > before.number:
            after = self._attempt(request, before)
            key = reference_key(ReferenceKey("state", *name))
            self._log.write([(key, encode_reference_state(after))])
            with self._lock:
                self._states[name] = after
            fields = {"reference": request.reference, "state": after.state, "error": after.error}
            logger.info("reference table changed", extra={"fields": fields})
        if request.upload is not None:
            (self._data_dir / UPLOADS / request.upload).unlink(missing_ok=True)

    def _attempt(self, request: ReferenceRequest, before: ReferenceState) -> ReferenceState:
        """Carry out a request; a few times, for a disk may be full for a moment."""
        pause = self._retry_seconds
        for attempt in range(1, ATTEMPTS + 1):
            try:
                if request.kind == "delete":
                    return self._delete(request)
                return self._write(request, before)
            except (PySparkException, JvmError, OSError) as error:
                reason = _first_line(error)
                fields = {"reference": request.reference, "attempt": attempt, "reason": reason}
                logger.warning("reference table not written", extra={"fields": fields})
                if attempt < ATTEMPTS:
                    self._wait(pause)
                    pause *= 2
        return replace(before, number=request.number, state="failed", error=reason)

    def _write(self, request: ReferenceRequest, before: ReferenceState) -> ReferenceState:
        path = str(reference_table_path(self._data_dir, request.tenant, request.reference))
        done = self._last_commit(path)
        if done is None or done["number"] < request.number:
            rows, said = self._rows(request, path)
            said |= {"number": request.number, "at": request.at, "kind": request.kind}
            writer = (
                rows.write.format("delta")
                .mode("overwrite")
                .option("overwriteSchema", "true")
                .option("txnAppId", f"reference/{request.tenant}/{request.reference}")
                .option("txnVersion", str(request.number))
                .option("userMetadata", json.dumps(said, ensure_ascii=False))
            )
            for key, value in _PROPERTIES.items():
                writer = writer.option(key, value)
            writer.save(path)
            self._name_table(request.tenant, request.reference)
            done = self._last_commit(path)
        if done is None or done["number"] != request.number:
            raise OSError(f"{path} has not the commit that was made")
        return ReferenceState(
            request.tenant,
            request.reference,
            request.number,
            "ready",
            version=done["commit"],
            columns=tuple((name, type_) for name, type_ in done["columns"]),
            key=tuple(done["key"]),
            rows=done["rows"],
            bytes=done["bytes"],
            description=done["description"],
            at=request.at,
            created_at=before.created_at if before.version is not None else request.at,
        )

    def _rows(self, request: ReferenceRequest, path: str) -> tuple[DataFrame, dict[str, Any]]:
        """Return the rows of the next version, and the metadata of its commit."""
        if request.kind == "rollback":
            said = self._commit(path, request.version)
            if said is None:
                raise FileNotFoundError(f"there is no version {request.version} (any more)")
            reader = self._spark.read.format("delta").option("versionAsOf", str(request.version))
            kept = ("columns", "key", "rows", "bytes", "description")
            again = {name: said[name] for name in kept} | {"version": request.version}
            return reader.load(path), again
        schema = ", ".join(f"`{name}` {type_}" for name, type_ in request.columns)
        file = self._data_dir / UPLOADS / str(request.upload)
        if not file.is_file():
            raise FileNotFoundError("the upload is gone")
        rows = (
            self._spark.read.schema(schema)
            .option("mode", "FAILFAST")
            .option("lineSep", "\n")
            .json(str(file))
        )
        return rows.coalesce(1), {
            "columns": request.columns,
            "key": request.key,
            "rows": request.rows,
            "bytes": request.bytes,
            "description": request.description,
            "version": None,
        }

    def _delete(self, request: ReferenceRequest) -> ReferenceState:
        path = reference_table_path(self._data_dir, request.tenant, request.reference)
        self._spark.sql(
            f"DROP TABLE IF EXISTS {reference_table(request.tenant, request.reference)}"
        )
        # First out of sight as a whole: a table of which half is gone is worse than none.
        grave = path.with_name(f".{path.name}.{request.number}.deleted")
        if path.exists():
            path.rename(grave)
        shutil.rmtree(grave, ignore_errors=True)
        forget_delta_table(self._spark, path)
        return ReferenceState(request.tenant, request.reference, request.number, "deleted")

    def _last_commit(self, path: str) -> dict[str, Any] | None:
        """Return the metadata of a table's newest commit; None without a table."""
        if not DeltaTable.isDeltaTable(self._spark, path):
            return None
        return _said(DeltaTable.forPath(self._spark, path).history(1))

    def _commit(self, path: str, version: int | None) -> dict[str, Any] | None:
        history = DeltaTable.forPath(self._spark, path).history()
        return _said(history.where(f"version = {version}"))

    def _name_table(self, tenant: str, reference: str) -> None:
        name = reference_table(tenant, reference)
        path = str(reference_table_path(self._data_dir, tenant, reference))
        statement = f"CREATE TABLE IF NOT EXISTS {name} USING delta LOCATION {quoted(path)}"
        self._spark.sql(statement)

    def _vacuum(self) -> None:
        """Delete files that only versions need that are older than is promised."""
        for (tenant, reference), state in list(self._states.items()):
            if state.version is not None:
                try:
                    self._spark.sql(f"VACUUM {reference_table(tenant, reference)}")
                except (PySparkException, JvmError) as error:
                    fields = {"reference": reference, "reason": _first_line(error)}
                    logger.warning("reference table not tidied", extra={"fields": fields})


def _said(history: DataFrame) -> dict[str, Any] | None:
    """Return a commit's `userMetadata`, with its version as `commit`."""
    row = history.select("version", "userMetadata").first()
    if row is None or row["userMetadata"] is None:
        return None
    said: dict[str, Any] = json.loads(row["userMetadata"])
    return said | {"commit": row["version"]}


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:_MOST_ERROR]
