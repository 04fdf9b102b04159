"""Sessions and subscriptions: records of `mqlake.sessions` to the tables of these names.

sessions(key, value, offset) -> one row for each session that a batch says something of

The formats are those of `docs/records.md`; a record that does not follow them is left out.
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from mqlake.records.sessions import PROGRESS as _P
from mqlake.records.sessions import SESSION as _S
from mqlake.records.versions import READ_VERSIONS
from mqlake.tables.catalogue import SESSIONS, SUBSCRIPTIONS
from streaming.tables.merges import Matched, Merge, of_change

_SESSION: Final = """
    v int, id string, username string, protocol_level tinyint, keep_alive int, clean_start boolean,
    expiry bigint, gateway string, incarnation string, connected boolean, connected_at bigint,
    disconnected_at bigint, reason string, will struct<topic: string>, will_at bigint,
    subscriptions array<struct<
        filter: string, qos: tinyint, no_local: boolean, retain_as_published: boolean,
        retain_handling: tinyint, identifier: bigint>>,
    more int
"""
_OWN_RECORD: Final = """
    v int, id string, filter string, qos tinyint, no_local boolean, retain_as_published boolean,
    retain_handling tinyint, identifier bigint
"""
_PROGRESS: Final = """
    v int, id string, cursor array<bigint>, `out` array<array<bigint>>, `in` array<bigint>
"""
_QOS_AT: Final = 1
"""Position of the QoS in an element of `out`."""

_KEY: Final = ("tenant", "client_id")
_SAME_CLIENT: Final = "row.tenant = change.tenant AND row.client_id = change.client_id"
_INITIAL: Final = {
    "in_flight_out": "0",
    "in_flight_in": "0",
    "qos2_unacknowledged": "0",
    "cursor": "NULL",
    "progress_offset": "NULL",
}
"""Progress of a session before it has made any."""
_PROGRESS_COLUMNS: Final = tuple(_INITIAL)
_SESSION_COLUMNS: Final = tuple(
    column.name for column in SESSIONS.columns if column.name not in (*_KEY, *_PROGRESS_COLUMNS)
)
_SUBSCRIPTION_ASSIGNMENTS: Final = of_change(column.name for column in SUBSCRIPTIONS.columns)


def last_sessions(records: DataFrame) -> DataFrame:
    """Return the last records of each session: the session, its progress, or both.

    Returns:
        (tenant, client_id), `session` (null: nothing was said), `ended`, `progress` (null: nothing
        was said), `log_offset` and `progress_offset`.
    """
    name = F.col("key").cast("string")
    client = F.substring(name, 3, 2**31 - 1)
    is_said = F.is_valid_utf8(name) & F.substring(name, 1, 2).isin(f"{_S}/", f"{_P}/")
    named = records.where(is_said).select(
        F.substring(name, 1, 2).alias("kind"),
        F.substring_index(client, "/", 1).alias("tenant"),
        F.substring(client, F.instr(client, "/") + 1, F.length(client)).alias("client_id"),
        F.struct("offset", F.col("value").cast("string").alias("value")).alias("record"),
    )
    last = named.groupBy(*_KEY).agg(
        *(F.max(F.when(F.col("kind") == f"{one}/", F.col("record"))).alias(one) for one in (_S, _P))
    )
    return last.select(
        *_KEY,
        _parsed(f"{_S}.value", _SESSION).alias("session"),
        (F.col(_S).isNotNull() & F.col(f"{_S}.value").isNull()).alias("ended"),
        _parsed(f"{_P}.value", _PROGRESS).alias("progress"),
        F.col(f"{_S}.offset").alias("log_offset"),
        F.col(f"{_P}.offset").alias("progress_offset"),
    )


def session_rows(last: DataFrame) -> DataFrame:
    """Return the changes of the table `sessions`: its columns, `ended` and `progress_id`.

    `id` is null where only progress is said, `progress_id` where none is.
    """
    session = F.col("session")
    progress = F.col("progress")
    is_qos2 = F.filter(progress["out"], lambda each: each[_QOS_AT] == 2)
    columns: dict[str, Column] = {
        "connected_at": F.timestamp_millis(session["connected_at"]),
        "disconnected_at": F.timestamp_millis(session["disconnected_at"]),
        "subscriptions": F.coalesce(F.size(session["subscriptions"]), F.lit(0))
        + F.coalesce(session["more"], F.lit(0)),
        "will_topic": session["will"]["topic"],
        "will_at": F.timestamp_millis(session["will_at"]),
        "in_flight_out": F.size(progress["out"]),
        "in_flight_in": F.size(progress["in"]),
        "qos2_unacknowledged": F.size(is_qos2) + F.size(progress["in"]),
        "cursor": progress["cursor"],
        "log_offset": F.col("log_offset"),
        "progress_offset": F.col("progress_offset"),
    }
    return last.select(
        *_KEY,
        "ended",
        progress["id"].alias("progress_id"),
        *(
            columns.get(column.name, session[column.name]).cast(column.type).alias(column.name)
            for column in SESSIONS.columns
            if column.name not in _KEY
        ),
    )


def merge_sessions(changes: DataFrame) -> None:
    """Bring the rows of `session_rows` into the table; a second time changes nothing.

    Progress counts only for the session it names: a client that started clean has none yet.
    """
    is_new_session = "change.log_offset > row.log_offset"
    is_own = "change.progress_id = change.id"
    session = of_change(_SESSION_COLUMNS)
    own_or_kept = {
        name: f"CASE WHEN {is_own} THEN change.{name} "
        f"WHEN change.id = row.id THEN row.{name} ELSE {initial} END"
        for name, initial in _INITIAL.items()
    }
    own_or_initial = {
        name: f"CASE WHEN {is_own} THEN change.{name} ELSE {initial} END"
        for name, initial in _INITIAL.items()
    }
    Merge(
        on=_SAME_CLIENT,
        matched=(
            Matched(f"change.ended AND {is_new_session}"),
            Matched(f"change.id IS NOT NULL AND {is_new_session}", session | own_or_kept),
            Matched(
                "change.progress_id = row.id "
                "AND change.progress_offset > coalesce(row.progress_offset, -1)",
                of_change(_PROGRESS_COLUMNS),
            ),
        ),
        insert_if="change.id IS NOT NULL",
        inserted=of_change(_KEY) | session | own_or_initial,
    ).into(SESSIONS.name, changes)


def subscription_rows(last: DataFrame) -> DataFrame:
    """Return the changes of the table `subscriptions` that records of sessions make.

    Returns:
        Its columns; a row without `filter` for each session of which something was said, which
        takes the earlier subscriptions away, then those that stand in its record.
    """
    said = last.where("ended OR session.id IS NOT NULL")
    known = {"log_offset": F.col("log_offset"), "session_id": F.col("session.id")}
    emptied = said.select(
        *_KEY,
        *(
            known.get(column.name, F.lit(None)).cast(column.type).alias(column.name)
            for column in SUBSCRIPTIONS.columns
            if column.name not in _KEY
        ),
    )
    each = said.select(
        *_KEY,
        "log_offset",
        F.col("session.id").alias("session_id"),
        F.lit(False).alias("own_record"),
        F.inline("session.subscriptions"),
    ).dropDuplicates([*_KEY, "filter"])
    return emptied.unionByName(each)


def merge_subscriptions(changes: DataFrame) -> None:
    """Bring the rows of `subscription_rows` into the table: a session's rows go, its new ones come.

    Those with records of their own go with the session that they are of. A second time it takes
    away and brings the same rows.
    """
    is_its = "coalesce(row.own_record, false) AND row.session_id <=> change.session_id"
    Merge(
        # Only the rows without a filter match, so those with one are inserted.
        on=f"change.filter IS NULL AND {_SAME_CLIENT}",
        matched=(Matched(f"change.log_offset >= row.log_offset AND NOT ({is_its})"),),
        insert_if="change.filter IS NOT NULL",
        inserted=_SUBSCRIPTION_ASSIGNMENTS,
    ).into(SUBSCRIPTIONS.name, changes)


def own_record_rows(records: DataFrame) -> DataFrame:
    """Return the last that is said of each subscription that has a record of its own.

    Returns:
        The columns of the table `subscriptions`; `session_id` is null where it has ended. They are
        to be brought in before `subscription_rows` of the same records: a session ends later than
        it subscribes.
    """
    name = F.col("key").cast("string")
    rest = F.substring(name, 3, 2**31 - 1)
    is_said = F.is_valid_utf8(name) & name.startswith("u/")
    client = F.substring_index(rest, "\0", 1)
    last = (
        records.where(is_said)
        .select(
            F.substring_index(client, "/", 1).alias("tenant"),
            F.substring(client, F.instr(client, "/") + 1, F.length(client)).alias("client_id"),
            F.substring(rest, F.instr(rest, "\0") + 1, F.length(rest)).alias("filter"),
            F.struct("offset", F.col("value").cast("string").alias("value")).alias("record"),
        )
        .groupBy(*_KEY, "filter")
        .agg(F.max("record").alias("record"))
        .select(
            *_KEY,
            "filter",
            F.col("record.value").isNull().alias("ended"),
            F.col("record.offset").alias("log_offset"),
            _parsed("record.value", _OWN_RECORD).alias("said"),
        )
        .where("ended OR said.filter = filter")
    )
    columns = {
        **{one: F.col(one) for one in (*_KEY, "filter", "log_offset")},
        "session_id": F.col("said.id"),
        "own_record": F.lit(True),
    }
    return last.select(
        *(
            columns.get(column.name, F.col(f"said.{column.name}"))
            .cast(column.type)
            .alias(column.name)
            for column in SUBSCRIPTIONS.columns
        )
    )


def merge_own_records(changes: DataFrame) -> None:
    """Bring the rows of `own_record_rows` into the table."""
    is_same = f"row.own_record AND row.filter = change.filter AND {_SAME_CLIENT}"
    is_newer = "change.log_offset > row.log_offset"
    Merge(
        on=is_same,
        matched=(
            Matched(f"change.session_id IS NULL AND {is_newer}"),
            Matched(is_newer, _SUBSCRIPTION_ASSIGNMENTS),
        ),
        insert_if="change.session_id IS NOT NULL",
        inserted=_SUBSCRIPTION_ASSIGNMENTS,
    ).into(SUBSCRIPTIONS.name, changes)


def merge_counts(changes: DataFrame) -> None:
    """Bring into the table `sessions` how many subscriptions those of `own_record_rows` have."""
    spark = changes.sparkSession
    subscriptions = spark.table(SUBSCRIPTIONS.name).select(*_KEY, "filter")
    counted = (
        changes.select(*_KEY)
        .distinct()
        .join(subscriptions, [*_KEY], "left")
        .groupBy(*_KEY)
        .agg(F.count_distinct("filter").cast("int").alias("subscriptions"))
    )
    is_other = "row.subscriptions <> change.subscriptions"
    Merge(
        on=_SAME_CLIENT,
        matched=(Matched(is_other, {"subscriptions": "change.subscriptions"}),),
    ).into(SESSIONS.name, counted)


def _parsed(value: str, schema: str) -> Column:
    """Return a record's JSON as a struct; null when there is none, or not of our version."""
    parsed = F.from_json(value, schema)
    return F.when(parsed["v"].isin(*READ_VERSIONS) & parsed["id"].isNotNull(), parsed)
