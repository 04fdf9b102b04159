"""Events of every delivery that running rules ask for, learned from `mqlake.rules`.

Most gateways never write such an event. So nothing is done for one before the activation of a rule
that reads it has been read here: a moment after the rule is in force.
"""

import logging
from collections.abc import Callable
from typing import Final

from mqlake.errors import InvalidRecord, LogError
from mqlake.log.contract import BEGINNING, LogReader
from mqlake.records.messages import RULES, LogRecord
from mqlake.records.rule_facts import Fact, keep, read_fact
from mqlake.records.rules import EVENTS_PREFIX, Kind, decode_activation, events_read

logger = logging.getLogger(__name__)

_SIGN: Final = EVENTS_PREFIX.encode()
"""In every activation of a rule that reads events; other activations are not even decoded."""


class WantedEvents:
    """Follows activations.

    Args:
        reader: Not started yet.
        on_changed: Called when a rule begins or ends to ask for events.
    """

    def __init__(self, reader: LogReader, on_changed: Callable[[], None]) -> None:
        self._reader = reader
        self._on_changed = on_changed
        self._by_rule: dict[tuple[str, str], frozenset[str]] = {}

    async def open(self) -> None:
        """Begin to read.

        Raises:
            LogError: The log cannot be read.
        """
        await self._reader.start(RULES, {0: BEGINNING}, self._receive, self._report)

    async def close(self) -> None:
        await self._reader.close()

    def tenants(self, event: str) -> frozenset[str]:
        """Return whose rules read an event, `message_delivered` say."""
        return frozenset(rule[0] for rule, events in self._by_rule.items() if event in events)

    def _receive(self, records: list[LogRecord]) -> None:
        is_changed = False
        for record in records:
            fact = read_fact(record.key, record.value)
            if fact is None or fact.kind is not Kind.ACTIVATION:
                continue
            events = self._read(fact)
            if events != self._by_rule.get(fact.name):
                is_changed = True
                keep(self._by_rule, fact.name, events)
        if is_changed:
            self._on_changed()

    def _read(self, fact: Fact) -> frozenset[str] | None:
        try:
            return fact.content(_events_of)
        except InvalidRecord as exc:
            logger.warning("activation ignored", extra={"fields": {"reason": str(exc)}})
            return None

    def _report(self, error: LogError) -> None:
        logger.warning("rules cannot be read", extra={"fields": {"reason": str(error)}})


def _events_of(activation: bytes) -> frozenset[str] | None:
    return (events_read(decode_activation(activation)) or None) if _SIGN in activation else None
