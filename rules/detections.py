"""Detections in plain SQL: for rows of a table, where everything is known at once.

The live twin is `DetectionProcessor.java`; tests compare the two. Messages of a key
are taken in the order of their time, then of `Detection.order`. A key whose messages pause for
longer than the detection's duration and KEEP_MS begins again behind the pause.
"""
# ruff: noqa: S608 - the names in these queries are the compiler's, not a user's

from collections.abc import Sequence
from typing import Final

from rules.language.plan import AT_COLUMN, EVENT_TIME, SINCE, STATE, Detection, DetectionKind

KEEP_MS: Final = 7 * 24 * 3_600_000
"""A key of which nothing came for so long, counted from its deadline if it has one, is forgotten:
else the state of keys that vanish would grow for ever."""

STATES: Final[dict[DetectionKind, tuple[str, str]]] = {
    "absence": ("absent", "present"),
    "debounce": ("on", "off"),
    "hysteresis": ("high", "low"),
    "n_of_m": ("on", "off"),
}
"""Words of the two states; every key begins in the second one, which is not reported."""


def batch_query(
    detection: Detection,
    columns: Sequence[str],
    relation: str,
    until: str = "NULL",
    keep_ms: int = KEEP_MS,
) -> str:
    """Return the query that yields the relation `DETECTED`, in no order.

    Args:
        detection: Detection of the rule's plan.
        columns: Columns of the stream's relation, `EVENT_TIME` among them.
        relation: Name of that relation.
        until: TIMESTAMP expression: time has passed up to there, which tells of silence. NULL: up
            to the last message of the relation, of any key.
        keep_ms: When a key is forgotten.
    """
    keep = detection.duration_ms + keep_ms
    keys = ", ".join(detection.keys)
    order = ", ".join((EVENT_TIME, *detection.order))
    window = f"(PARTITION BY {keys} ORDER BY {order})"
    until = f"coalesce({until}, (SELECT max({EVENT_TIME}) FROM {relation}))"
    # The numbers count the pauses behind which a key begins again.
    parts = f"""
        WITH gaps AS (
          SELECT *, lag({EVENT_TIME}) OVER {window} AS _before FROM {relation}
        ), parts AS (
          SELECT *, count_if({EVENT_TIME} > _before + {_milliseconds(keep)}) OVER {window} AS _part
          FROM gaps
        )"""
    part = f"PARTITION BY {keys}, _part"
    changes = _CHANGES[detection.kind](detection, part, order, until)
    names = ", ".join(columns)
    return f"""{parts}, {changes}
        SELECT {names}, _told.{AT_COLUMN}, _told.{STATE}, _told.{SINCE}
        FROM changes LATERAL VIEW explode(filter(_all, one -> one IS NOT NULL)) _each AS _told"""


def _absence(detection: Detection, part: str, order: str, until: str) -> str:
    duration = _milliseconds(detection.duration_ms)
    absent, present = STATES[detection.kind]
    over = f"OVER ({part} ORDER BY {order})"
    deadline = f"{EVENT_TIME} + {duration}"
    # A next message of another part comes so late that the silence was reported.
    is_absent = f"coalesce(_next > {deadline}, {deadline} <= {until})"
    return f"""neighbours AS (
          SELECT *, lag({EVENT_TIME}) {over} AS _last, lead({EVENT_TIME}) {over} AS _next
          FROM parts
        ), changes AS (
          SELECT *, array(
            {_if(f"{EVENT_TIME} > _last + {duration}", EVENT_TIME, present, EVENT_TIME)},
            {_if(is_absent, deadline, absent, EVENT_TIME)}
          ) AS _all FROM neighbours
        )"""


def _debounce(detection: Detection, part: str, order: str, until: str) -> str:
    duration = _milliseconds(detection.duration_ms)
    on, off = STATES[detection.kind]
    over = f"OVER ({part} ORDER BY {order})"
    begin = f"_first + {duration}"
    is_last = (
        f"_holds AND {EVENT_TIME} <= {begin} AND coalesce(_next > {begin}, {begin} <= {until})"
    )
    ends = f"NOT _holds AND _held AND {EVENT_TIME} > _first_held + {duration}"
    return f"""held AS (
          SELECT *, coalesce({detection.condition}, false) AS _holds FROM parts
        ), runs AS (
          SELECT *, count_if(NOT _holds) {over} AS _run FROM held
        ), firsts AS (
          SELECT *, min(if(_holds, {EVENT_TIME}, NULL)) OVER ({part}, _run) AS _first FROM runs
        ), neighbours AS (
          SELECT *, lead({EVENT_TIME}) {over} AS _next, lag(_holds) {over} AS _held,
            lag(_first) {over} AS _first_held
          FROM firsts
        ), changes AS (
          SELECT *, array(
            {_if(is_last, begin, on, "_first")},
            {_if(ends, EVENT_TIME, off, EVENT_TIME)}
          ) AS _all FROM neighbours
        )"""


def _hysteresis(detection: Detection, part: str, order: str, until: str) -> str:
    high, low = STATES[detection.kind]
    value = f"nullif({detection.value}, double('NaN'))"
    before = f"ORDER BY {order} ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING"
    return f"""sides AS (
          SELECT *, CASE WHEN {value} >= double('{detection.high!r}') THEN true
            WHEN {value} <= double('{detection.low!r}') THEN false END AS _side
          FROM parts
        ), neighbours AS (
          SELECT *, coalesce(last_value(_side, true) OVER ({part} {before}), false) AS _before_side
          FROM sides
        ), {_changes_of("_side", "_before_side", high, low)}"""


def _n_of_m(detection: Detection, part: str, order: str, until: str) -> str:
    on, off = STATES[detection.kind]
    last = f"ORDER BY {order} ROWS BETWEEN {detection.last - 1} PRECEDING AND CURRENT ROW"
    return f"""counted AS (
          SELECT *, count_if({detection.condition}) OVER ({part} {last}) >= {detection.least} AS _on
          FROM parts
        ), neighbours AS (
          SELECT *, coalesce(lag(_on) OVER ({part} ORDER BY {order}), false) AS _was_on FROM counted
        ), {_changes_of("_on", "_was_on", on, off)}"""


_CHANGES: Final = {
    "absence": _absence,
    "debounce": _debounce,
    "hysteresis": _hysteresis,
    "n_of_m": _n_of_m,
}


def _changes_of(state: str, before: str, first: str, second: str) -> str:
    return f"""changes AS (
          SELECT *, array(
            {_if(f"{state} AND NOT {before}", EVENT_TIME, first, EVENT_TIME)},
            {_if(f"NOT {state} AND {before}", EVENT_TIME, second, EVENT_TIME)}
          ) AS _all FROM neighbours
        )"""


def _if(condition: str, at: str, state: str, since: str) -> str:
    """Return a struct, NULL where the condition is not true."""
    told = f"named_struct('{AT_COLUMN}', {at}, '{STATE}', '{state}', '{SINCE}', {since})"
    return f"CASE WHEN {condition} THEN {told} END"


def _milliseconds(duration_ms: int) -> str:
    return f"INTERVAL '{duration_ms / 1000:.3f}' SECOND"
