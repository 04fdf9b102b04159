"""Conditions of Spark SQL for rows of the history that have been kept long enough."""

from collections.abc import Iterable
from typing import Final

from mqlake.tables.retention import EVERY, EVERYTHING, KeepingPolicy
from mqlake.topics.names import SEPARATOR
from rules.sql.patterns import topic_pattern
from rules.sql.quoting import quoted

DAY_MS: Final = 86_400_000


def expired(policies: Iterable[KeepingPolicy], table: str, now_ms: int) -> str | None:
    """Return the condition of the rows that are to go; None when there is no policy.

    Whole days in UTC: rows go once a day, so that a file is not written again each time a few of
    its rows have reached their age.
    """
    parts: list[str] = []
    earlier: list[str] = []
    for policy in policies:
        if policy.table != table:
            continue
        fits = _fits(policy)
        before_ms = (now_ms - round(policy.keep_days * DAY_MS)) // DAY_MS * DAY_MS
        rest = "".join(f" AND NOT ({one})" for one in earlier)
        parts.append(f"(({fits}){rest} AND ts < timestamp_millis({before_ms:d}))")
        earlier.append(fits)
    return " OR ".join(parts) if parts else None


def _fits(policy: KeepingPolicy) -> str:
    conditions = []
    if policy.tenant != EVERY:
        conditions.append(f"tenant = {quoted(policy.tenant)}")
    if policy.topic_filter != EVERYTHING:
        conditions.append(f"coalesce({_matches(policy.topic_filter)}, false)")
    return " AND ".join(conditions) or "true"


def _matches(topic_filter: str) -> str:
    levels = topic_filter.split(SEPARATOR)
    fixed = next((at for at, level in enumerate(levels) if level in ("+", "#")), None)
    if fixed is None:
        return f"topic = {quoted(topic_filter)}"
    pattern = f"topic RLIKE {topic_pattern(topic_filter)}"
    if fixed == 0:
        return pattern
    # Lets Delta leave files alone by their least and greatest topic; `/` is followed by `0`.
    parent = SEPARATOR.join(levels[:fixed])
    return f"topic >= {quoted(parent)} AND topic < {quoted(parent + '0')} AND {pattern}"
