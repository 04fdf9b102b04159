"""Counters of rules, summed over all runs of all processes that write into `mqlake.metrics`.

A reset is a record too: the counters of each run at that moment, which are taken off from then on.
So it outlives the API, and the processes that count need not know.
"""

import json
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from api.log.appending import LogAppender
from api.log.following import Followed, KeptInMemory
from api.log.repository import append
from mqlake.clock import Clock
from mqlake.errors import InvalidRecord
from mqlake.records.messages import METRICS
from mqlake.records.rules import RuleMetricsKey, decode_rule_metrics_key, rule_metrics_key
from mqlake.records.versions import RECORD_VERSION

RESET_PROCESS: Final = "api"
RESET_INCARNATION: Final = "reset"

RATE_SECONDS: Final = 10.0
LONG_RATE_SECONDS: Final = 300.0
_SAMPLE_SECONDS: Final = 5.0
"""Counters are remembered that often, for rates."""

GAUGES: Final = frozenset({"queued", "behind", "failing"})
"""Values of the moment, not counters: only the run that wrote last knows them."""

Counters = dict[str, Any]
"""Numbers by name; a value may again be such an object."""
Name = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Rates:
    """Messages a second that matched a filter."""

    now: float
    last_5_minutes: float
    highest: float
    """Since the API was started."""


class MaterialisedMetrics(KeptInMemory):
    """Counters of all rules; safe to use from any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._runs: dict[Name, dict[str, Counters]] = {}
        self._resets: dict[Name, Counters] = {}
        self._history: dict[Name, deque[tuple[float, float]]] = {}
        self._highest: dict[Name, float] = {}
        self._reset_offsets: dict[bytes, int] = {}

    def forget(self) -> None:
        """Begin again."""
        with self._lock:
            for kept in (self._runs, self._resets, self._history, self._highest):
                kept.clear()
            self._reset_offsets.clear()

    def complete(self) -> None:
        """Nothing waits for this."""

    def take(self, records: Sequence[Followed], *, is_old: bool) -> list[InvalidRecord]:
        """Apply records of `mqlake.metrics`."""
        refused: list[InvalidRecord] = []
        with self._lock:
            for record in records:
                key = decode_rule_metrics_key(record.key)
                if key is None:
                    continue
                try:
                    self._take(key, record, is_old=is_old)
                except InvalidRecord as exc:
                    refused.append(exc)
        return refused

    def counters(self, tenant: str, rule_id: str) -> dict[str, Counters]:
        """Return the counters since the last reset, summed over runs, by process."""
        name = (tenant, rule_id)
        with self._lock:
            resets = self._resets.get(name, {}).get("runs", {})
            found: dict[str, Counters] = {}
            for run, counters in self._runs.get(name, {}).items():  # the last to speak is last
                process = run.partition("/")[0]
                since = _combine(counters, resets.get(run, {}), -1)
                found[process] = _combine(since, found.get(process, {}), 1)
            return found

    def reset_at_ms(self, tenant: str, rule_id: str) -> int | None:
        with self._lock:
            found: int | None = self._resets.get((tenant, rule_id), {}).get("at")
            return found

    def reset_value(self, tenant: str, rule_id: str) -> bytes:
        """Return the value of a record that takes off the present counters."""
        with self._lock:
            runs = self._runs.get((tenant, rule_id), {})
            value = {"v": RECORD_VERSION, "at": self._clock.now_ms(), "runs": runs}
            return json.dumps(value).encode()

    def keys(self, tenant: str, rule_id: str) -> list[bytes]:
        """Return the keys of all records of a rule."""
        name = (tenant, rule_id)
        with self._lock:
            runs = [tuple(run.split("/", 1)) for run in self._runs.get(name, {})]
            if name in self._resets:
                runs.append((RESET_PROCESS, RESET_INCARNATION))
        return [
            rule_metrics_key(RuleMetricsKey(process, incarnation, tenant, rule_id))
            for process, incarnation in runs
        ]

    def rules_of(self, tenant: str) -> list[str]:
        """Return of which rules of a tenant something is counted."""
        with self._lock:
            names = self._runs.keys() | self._resets.keys()
            return sorted(rule_id for of, rule_id in names if of == tenant)

    def tenants(self) -> set[str]:
        """Return of whose rules something is counted."""
        with self._lock:
            return {tenant for tenant, _ in self._runs.keys() | self._resets.keys()}

    def rates(self, tenant: str, rule_id: str) -> Rates:
        name = (tenant, rule_id)
        now = self._clock.monotonic()
        with self._lock:
            history = self._history.get(name, deque())
            matched = self._matched(name)
            return Rates(
                _rate(history, now, matched, RATE_SECONDS),
                _rate(history, now, matched, LONG_RATE_SECONDS),
                self._highest.get(name, 0.0),
            )

    def matched_per_second(self) -> float:
        """Return how many messages a second all rules together match."""
        now = self._clock.monotonic()
        with self._lock:
            return sum(
                _rate(history, now, self._matched(name), RATE_SECONDS)
                for name, history in self._history.items()
            )

    def _take(self, key: RuleMetricsKey, record: Followed, *, is_old: bool) -> None:
        name = (key.tenant, key.rule)
        counters = _read(record)
        if (key.process, key.incarnation) == (RESET_PROCESS, RESET_INCARNATION):
            if record.offset > self._reset_offsets.get(record.key, -1):
                self._reset_offsets[record.key] = record.offset
                if counters is None:
                    self._resets.pop(name, None)
                else:
                    self._resets[name] = counters
            return
        run = f"{key.process}/{key.incarnation}"
        if counters is None:
            runs = self._runs.get(name, {})
            runs.pop(run, None)
            if not runs:
                for kept in (self._runs, self._history, self._highest):
                    kept.pop(name, None)
            return
        counters.pop("v", None)
        if not is_old:
            self._remember(name)
        runs = self._runs.setdefault(name, {})
        runs.pop(run, None)
        runs[run] = counters

    def _remember(self, name: Name) -> None:
        """Keep the present counters, for rates."""
        now = self._clock.monotonic()
        history = self._history.setdefault(name, deque())
        if history and now - history[-1][0] < _SAMPLE_SECONDS:
            return
        matched = self._matched(name)
        if history:
            at, before = history[-1]
            rate = (matched - before) / (now - at)
            self._highest[name] = max(self._highest.get(name, 0.0), rate)
        history.append((now, matched))
        while now - history[0][0] > LONG_RATE_SECONDS + _SAMPLE_SECONDS:
            history.popleft()

    def _matched(self, name: Name) -> float:
        return sum(float(one.get("matched", 0)) for one in self._runs.get(name, {}).values())


def reset_metrics(
    log: LogAppender, metrics: MaterialisedMetrics, tenant: str, rule_id: str
) -> None:
    """Have a rule count from zero again.

    Raises:
        LogError: The log does not answer.
    """
    key = rule_metrics_key(RuleMetricsKey(RESET_PROCESS, RESET_INCARNATION, tenant, rule_id))
    value = metrics.reset_value(tenant, rule_id)
    append(log, metrics, METRICS, [(key, value)], what="metrics")


def forget_metrics(
    log: LogAppender, metrics: MaterialisedMetrics, tenant: str, rule_id: str
) -> None:
    """Forget all that was counted of a rule.

    Raises:
        LogError: The log does not answer.
    """
    delete_keys(log, metrics, metrics.keys(tenant, rule_id))


def delete_keys(log: LogAppender, view: KeptInMemory, keys: Iterable[bytes]) -> None:
    """Delete records of `mqlake.metrics`, in the log and in the view that follows it.

    Raises:
        LogError: The log does not answer.
    """
    append(log, view, METRICS, [(key, None) for key in keys], what="metrics")


def total(counters: dict[str, Counters], name: str) -> int:
    """Return a counter summed over processes."""
    return sum(int(one.get(name, 0)) for one in counters.values())


def _rate(
    history: "deque[tuple[float, float]]", now: float, matched: float, seconds: float
) -> float:
    for at, before in history:
        if now - at <= seconds:
            return round((matched - before) / (now - at), 3) if now > at else 0.0
    return 0.0


def _read(record: Followed) -> Counters | None:
    if record.value is None:
        return None
    try:
        found = json.loads(record.value)
    except (ValueError, RecursionError) as exc:
        raise InvalidRecord(f"metrics {record.key!r} are not JSON: {exc}") from exc
    if not isinstance(found, dict):
        raise InvalidRecord(f"metrics {record.key!r} are not a JSON object")
    return found


def _combine(left: Any, right: Any, sign: int) -> Any:
    """Add (or take off) numbers of the same name; other values stay as on the left."""
    if isinstance(left, dict):
        others = right if isinstance(right, dict) else {}
        names = [*left, *(name for name in others if name not in left and sign > 0)]
        return {
            name: left[name]
            if name in GAUGES and name in left
            else _combine(left.get(name), others.get(name), sign)
            for name in names
        }
    if isinstance(left, bool) or not isinstance(left, int | float | None):
        return left
    other = right if isinstance(right, int | float) else 0
    if left is None:
        return right
    return left + sign * other
