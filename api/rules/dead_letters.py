"""Dead letters as the table has them, as Spark SQL.

Text of a user is in here only as a literal that is built from its bytes.
"""

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from pydantic import BaseModel, Field

from api.rules import history
from api.spark.connect import Row
from mqlake.records.messages import INBOUND
from mqlake.tables.catalogue import DEAD_LETTERS

SHOWN_BYTES: Final = 4_096
_KEY: Final = (
    "struct(unix_micros(ts) AS ts, rule AS rule, source AS source, log_partition AS p,"
    " log_offset AS o, index AS i, coalesce(action, '') AS a)"
)
"""Order of a list; no two letters are equal in all of it but those that are alike."""
_KEY_TYPE: Final = (
    "STRUCT<ts: BIGINT, rule: STRING, source: STRING, p: INT, o: BIGINT, i: INT, a: STRING>"
)
KEY_PARTS: Final = 7


@dataclass(frozen=True, slots=True)
class Wanted:
    """Selection of dead letters.

    Attributes:
        rule: None: of all rules.
        stage: evaluate or action; None: both.
        error: Part of the error; None: any.
        from_ms: Given up not before this time.
        to_ms: Given up before.
        is_open: True: not those that were run again since; False: only those; None: all.
    """

    tenant: str
    rule: str | None = None
    stage: str | None = None
    error: str | None = None
    from_ms: int | None = None
    to_ms: int | None = None
    is_open: bool | None = None

    def conditions(self) -> list[str]:
        found = [f"tenant = {history.text(self.tenant)}"]
        if self.rule is not None:
            found.append(f"rule = {history.text(self.rule)}")
        found.append("stage <> 'rerun'" if self.stage is None else f"stage = '{self.stage}'")
        if self.error is not None:
            found.append(f"contains(error, {history.text(self.error)})")
        return [*found, *history.between(self.from_ms, self.to_ms)]


class DeadLetterView(BaseModel):
    """A message on which a rule failed, or an output on which an action failed."""

    rule_id: str
    rule_version: int
    stage: str = Field(description="evaluate: the rule failed; action: one of its actions failed")
    action: str | None = Field(description="index and function of the action")
    error: str
    topic: str
    clientid: str
    payload: str | None = Field(
        description="evaluate: the payload; action: the output row; null if it is not UTF-8"
    )
    payload_base64: str | None = Field(description="the same if it is not UTF-8")
    payload_bytes: int = Field(description=f"its length; the first {SHOWN_BYTES} bytes are shown")
    given_up_at: datetime
    source: str = Field(
        description="log topic of the message, job of a backfill, or run of a stateful rule"
    )
    log_partition: int
    log_offset: int
    rerun: bool = Field(description="a rerun has succeeded since")


def list_query(wanted: Wanted, after: Sequence[str] | None, limit: int) -> str:
    """Return the query of a page, the newest first.

    Args:
        wanted: Which letters.
        after: The keys of the page before; None: the first page.
        limit: How many.
    """
    letters = (
        f"SELECT *, {_KEY} AS key, stage = 'evaluate' AND done_rule IS NOT NULL AS rerun"  # noqa: S608
        f" FROM (SELECT * FROM {DEAD_LETTERS.name} WHERE {' AND '.join(wanted.conditions())})"
        f" LEFT JOIN {_done(wanted)}"
    )
    conditions = ["true"]
    if wanted.is_open is not None:
        conditions.append("NOT rerun" if wanted.is_open else "rerun")
    if after is not None:
        ts, rule, source, partition, offset, index, action = after
        last = (
            f"named_struct('ts', {int(ts):d}L, 'rule', {history.text(rule)}, 'source', "
            f"{history.text(source)}, 'p', {int(partition):d}, 'o', {int(offset):d}L, 'i', "
            f"{int(index):d}, 'a', {history.text(action)})"
        )
        conditions.append(f"key < CAST({last} AS {_KEY_TYPE})")
    names = "rule, rule_version, stage, action, error, topic, client_id, ts, source"
    return (
        f"SELECT {names}, log_partition, log_offset, index, rerun, unix_micros(ts) AS micros,"  # noqa: S608
        f" substring(value, 1, {SHOWN_BYTES}) AS shown,"
        f" octet_length(value) AS length FROM ({letters}) WHERE {' AND '.join(conditions)}"
        f" ORDER BY key DESC LIMIT {limit:d}"
    )


def _done(wanted: Wanted) -> str:
    """Return the relation to join with: messages that were run again, by rule and position."""
    rule = "" if wanted.rule is None else f" AND rule = {history.text(wanted.rule)}"
    return (
        "(SELECT DISTINCT rule AS done_rule, source AS done_source, log_partition AS done_p,"  # noqa: S608
        f" log_offset AS done_o FROM {DEAD_LETTERS.name} WHERE stage = 'rerun'"
        f" AND tenant = {history.text(wanted.tenant)}{rule})"
        " ON rule = done_rule AND source = done_source AND log_partition = done_p"
        " AND log_offset = done_o"
    )


def places_query(wanted: Wanted, after: int | None, limit: int | None) -> str:
    """Return the query of the messages to be run again, by their position in the log, each once.

    Args:
        wanted: Choice among the dead letters of one rule.
        after: Beyond this position, see `history.read_position`; None: from the first.
        limit: How many; None: only their number, as `places`.
    """
    conditions = [
        *wanted.conditions(),
        f"source = {history.text(INBOUND)}",
        # Messages that have come through the rule already would go round again.
        "NOT contains(error, 'loop: the message has come through')",
    ]
    found = (
        f"SELECT DISTINCT {history.POSITION} AS position FROM (SELECT * FROM"  # noqa: S608
        f" {DEAD_LETTERS.name} WHERE {' AND '.join(conditions)}) LEFT ANTI JOIN {_done(wanted)}"
    )
    if limit is None:
        return f"SELECT count(*) AS places FROM ({found})"  # noqa: S608
    beyond = "" if after is None else f" WHERE position > {after:d}"
    return f"SELECT position FROM ({found}){beyond} ORDER BY position LIMIT {limit:d}"  # noqa: S608


def view(row: Row) -> DeadLetterView:
    shown: bytes = row["shown"] or b""
    try:
        payload: str | None = shown.decode()
    except UnicodeDecodeError:
        payload = None
    return DeadLetterView(
        rule_id=row["rule"],
        rule_version=row["rule_version"],
        stage=row["stage"],
        action=row["action"],
        error=row["error"],
        topic=row["topic"],
        clientid=row["client_id"],
        payload=payload,
        payload_base64=None if payload is not None else b64encode(shown).decode("ascii"),
        payload_bytes=row["length"] or 0,
        given_up_at=row["ts"],
        source=row["source"],
        log_partition=row["log_partition"],
        log_offset=row["log_offset"],
        rerun=row["rerun"],
    )


def key_of(row: Row) -> tuple[str, ...]:
    """Return the values that a page's cursor holds."""
    found: list[Any] = [row["micros"], row["rule"], row["source"]]
    found += [row["log_partition"], row["log_offset"], row["index"], row["action"] or ""]
    return tuple(map(str, found))
