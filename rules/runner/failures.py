"""Events `rule.failed` of actions that were given up, when a rule of the tenant asks for them.

Bounded for each rule, and without endless chains: an action for the output of such an event may
fail too, and that failure makes no event.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from mqlake.clock import Clock
from mqlake.records.messages import EVENTS, HEADER_CHAIN
from mqlake.records.outputs import MAX_CHAIN, DeadLetter, Output, encode_chain
from mqlake.records.rules import EVENTS_PREFIX, MAX_FAILURES_TOLD, RULE_FAILED
from mqlake.records.versions import RECORD_VERSION
from rules.actions.contract import NewRecord

EVENT: Final = RULE_FAILED.replace(".", "_")
_TOPIC: Final = EVENTS_PREFIX + EVENT


@dataclass(slots=True)
class _Told:
    """Failures of one rule that were reported."""

    second: int = 0
    events: int = 0
    """In that second."""
    untold: int = 0
    """Failures since the last event."""


class FailureEvents:
    """Makes events of dead letters.

    Args:
        is_wanted: Tells whether rules of a tenant read `rule.failed`.
        clock: For the time of an event, and how many there are in a second.
    """

    def __init__(self, is_wanted: Callable[[str], bool], clock: Clock) -> None:
        self._is_wanted = is_wanted
        self._clock = clock
        self._told: dict[tuple[str, str], _Told] = {}

    def make(self, output: Output, letter: DeadLetter) -> NewRecord | None:
        """Return the event of a failed action; None when there is none to be reported."""
        if output.topic_name == _TOPIC or not self._is_wanted(output.tenant):
            return None
        now_ms = self._clock.now_ms()
        told = self._told.setdefault((output.tenant, output.rule), _Told())
        told.untold += 1
        if now_ms // 1000 != told.second:
            told.second, told.events = now_ms // 1000, 0
        if told.events == MAX_FAILURES_TOLD:
            return None
        told.events += 1
        count, told.untold = told.untold, 0
        event = {
            "v": RECORD_VERSION,
            "event": RULE_FAILED,
            "ts": now_ms,
            "tenant": output.tenant,
            "client_id": output.client_id,
            "rule": output.rule,
            "rule_version": output.version,
            "stage": letter.stage,
            "action": letter.action,
            "error": letter.error,
            "topic": output.topic_name,
            "count": count,
        }
        value = json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode()
        chain = (*output.chain, output.rule)[:MAX_CHAIN]
        key = f"{output.tenant}/{output.client_id}".encode()
        return NewRecord(EVENTS, key, value, [(HEADER_CHAIN, encode_chain(chain))], now_ms)

    def forget(self, tenant: str, rule: str) -> None:
        """Drop a rule that is deleted."""
        self._told.pop((tenant, rule), None)
