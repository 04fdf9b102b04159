"""The rules in force, for an application that does not put them there itself.

It follows the activations that the rule controller writes to `mqlake.rules`. Their outputs are in
the log behind them, so a reader of these that catches up here knows every version that they are of.
"""

import logging
import threading
import time
from typing import Final, Protocol

from mqlake.errors import InvalidRecord, LogError
from mqlake.records.messages import RULES
from mqlake.records.rule_facts import RuleKey, keep, read_fact
from mqlake.records.rules import Activation, Kind, decode_activation
from streaming.log.checkpoints import Offsets, later
from streaming.rules.changes import first_needed
from streaming.rules.log import RuleRecord
from streaming.rules.plans import StatefulRun, runs_of
from streaming.rules.program import TableAction, table_actions

logger = logging.getLogger(__name__)

READ_SECONDS: Final = 0.5
RETRY_SECONDS: Final = 1.0
CATCH_UP_SECONDS: Final = 30.0
_LOOK_SECONDS: Final = 0.02


class ActivationLog(Protocol):
    """The part of a log that is needed; `streaming.rules.log.RuleLog` has it."""

    def read(self, timeout_seconds: float) -> list[RuleRecord]: ...

    def is_caught_up(self) -> bool: ...

    def close(self) -> None: ...


class RulesInForce:
    """Follows activations; one thread does that, others ask.

    Args:
        log: Log that has the rules.

    Attributes:
        runs: All stateful versions, ended ones too; None while they are not known.
    """

    def __init__(self, log: ActivationLog) -> None:
        self._log = log
        self._lock = threading.Lock()
        """Held while the log is read: its next holder sees all that was read."""
        self._activations: dict[RuleKey, Activation] = {}
        self._table_actions: dict[tuple[str, str, int], tuple[TableAction, ...]] = {}
        self.runs: tuple[StatefulRun, ...] | None = None

    def run(self, stopping: threading.Event) -> None:
        """Follow until `stopping` is set; for a thread of its own."""
        while not stopping.is_set():
            try:
                self.step(READ_SECONDS)
            except Exception:
                if not stopping.is_set():
                    logger.exception("rules are not followed")
                stopping.wait(RETRY_SECONDS)
        with self._lock:
            self._log.close()

    def step(self, timeout_seconds: float = 0.0) -> None:
        """Take new records, waiting for some a while."""
        with self._lock:
            self._take(self._log.read(timeout_seconds))

    def catch_up(self) -> None:
        """Return when all is known that the log has now.

        Raises:
            LogError: Not in time.
        """
        deadline = time.monotonic() + CATCH_UP_SECONDS
        while True:
            with self._lock:
                self._take(self._log.read(_LOOK_SECONDS))
                if self._log.is_caught_up():
                    return
            if time.monotonic() > deadline:
                raise LogError("the rules are not read to their end", definite=True)

    @property
    def has_rules(self) -> bool:
        """Tell whether there are any, in force or not."""
        return bool(self._activations)

    def is_known(self, rule: RuleKey) -> bool:
        """Tell whether there is a rule, in force or not."""
        return rule in self._activations

    def run_names(self) -> frozenset[str] | None:
        """Return the names of all runs that may still write; None while they are not known."""
        runs = self.runs
        return None if runs is None else frozenset(run.name for run in runs)

    def table_actions(self, version: tuple[str, str, int]) -> tuple[TableAction, ...]:
        """Return the tables that the rows of a version (tenant, rule, version) go to.

        Raises:
            LogError: A version is not known, and the log does not answer.
        """
        if version not in self._table_actions:
            self.catch_up()
        return self._table_actions.setdefault(version, ())

    def needed(self, done: Offsets) -> Offsets | None:
        """Return from where on the evaluation of stateless rules needs the log.

        Args:
            done: How far it has certainly come; of a source without that it needs all.

        Returns:
            By log topic and partition the first offset; None when there is none to be evaluated.
        """
        activations = self._activations
        ends: dict[str, tuple[int, ...]] = {}
        for span in (span for activation in activations.values() for span in activation.spans):
            for log_topic, range_ in span.sources.items():
                positions = done.get(log_topic, {})
                # Of partitions that have come since a version began all is needed.
                known = max(positions, default=-1) + 1
                count = max(known, len(range_.starts), len(ends.get(log_topic, ())))
                ends[log_topic] = tuple(positions.get(number, 0) for number in range(count))
        first = first_needed(activations, done, ends)
        return None if first is None else later(first, done)

    def _take(self, records: list[RuleRecord]) -> None:
        """Take records; with the lock held."""
        activations = dict(self._activations)
        for record in records:
            if record.log_topic == RULES:
                self._apply(record, activations)
        if records:
            self._activations = activations
        if records or self.runs is None:
            known = self.runs is not None or self._log.is_caught_up()
            self.runs = runs_of(activations) if known else None

    def _apply(self, record: RuleRecord, activations: dict[RuleKey, Activation]) -> None:
        fact = read_fact(record.key, record.value, is_ours=record.is_ours)
        if fact is None or fact.kind is not Kind.ACTIVATION:
            return
        try:
            activation = fact.content(decode_activation)
        except InvalidRecord as error:
            fields = {"key": record.key.decode(errors="replace"), "reason": str(error)}
            logger.warning("record of rules ignored", extra={"fields": fields})
            return
        keep(activations, fact.name, activation)
        for span in () if activation is None else activation.spans:
            found = table_actions(span.actions, span.schema)
            self._table_actions[(*fact.name, span.version)] = found
