"""Actions of outputs: those of the version of the rule that made the output."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from pydantic import BaseModel

from mqlake.errors import InvalidRecord
from mqlake.records.messages import LogRecord
from mqlake.records.rule_facts import Fact, RuleKey, keep, read_fact
from mqlake.records.rules import Kind, decode_activation, events_read
from rules.model import ActionSpec

logger = logging.getLogger(__name__)

KNOWN_SECONDS: Final = 10.0
"""How long the actions of an output are waited for before the log is asked whether it has them."""

_Actions = tuple[ActionSpec, ...]


class _Version(BaseModel):
    """The fields of a version of a rule in `mqlake.rules` that are looked at here."""

    actions: _Actions
    made_by: Any = None


class Definitions:
    """Actions of rules as `mqlake.rules` has them, kept up to date by `apply`.

    Args:
        on_deleted: Called for rules that have been deleted.
        on_changed: Called for rules of which more is known.
    """

    def __init__(
        self, on_deleted: Callable[[RuleKey], None], on_changed: Callable[[RuleKey], None]
    ) -> None:
        self._on_deleted = on_deleted
        self._on_changed = on_changed
        self._versions: dict[RuleKey, dict[int, _Actions]] = {}
        self._makers: dict[RuleKey, dict[int, str]] = {}
        self._activated: dict[RuleKey, dict[int, _Actions]] = {}
        self._deleted: set[RuleKey] = set()
        self._events: dict[RuleKey, frozenset[str]] = {}
        self._changed = asyncio.Event()
        self.next_offset = 0

    def apply(self, records: list[LogRecord]) -> None:
        """Take records of `mqlake.rules`, in order."""
        for record in records:
            try:
                self._apply(read_fact(record.key, record.value))
            except InvalidRecord as exc:
                fields = {"key": record.key, "reason": str(exc)}
                logger.warning("record of a rule not understood", extra={"fields": fields})
            self.next_offset = record.offset + 1
        self._changed.set()

    def find(self, tenant: str, rule: str, version: int) -> _Actions | None:
        """Return the actions of a version, None when it is not known."""
        key = tenant, rule
        found = self._activated.get(key, {}).get(version)
        return self._versions.get(key, {}).get(version) if found is None else found

    def maker(self, tenant: str, rule: str, version: int) -> str | None:
        """Return the maker of a version; None for one of before makers were noted."""
        return self._makers.get((tenant, rule), {}).get(version)

    async def wait_for(self, tenant: str, rule: str, version: int) -> _Actions | None:
        """Return the actions of a version; wait a while for it to become known."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + KNOWN_SECONDS
        while (found := self.find(tenant, rule, version)) is None:
            self._changed.clear()
            try:
                async with asyncio.timeout_at(deadline):
                    await self._changed.wait()
            except TimeoutError:
                return None
        return found

    async def wait_until(self, offset: int) -> None:
        """Wait until all before an offset is applied."""
        while self.next_offset < offset:
            self._changed.clear()
            await self._changed.wait()

    def is_deleted(self, tenant: str, rule: str) -> bool:
        """Tell whether a rule is known to be deleted; of one that never was nothing is known."""
        return (tenant, rule) in self._deleted

    def is_read(self, tenant: str, event: str) -> bool:
        """Tell whether a running rule of a tenant reads an event, `rule_failed` say."""
        return any(rule[0] == tenant and event in read for rule, read in self._events.items())

    def _apply(self, fact: Fact | None) -> None:
        match fact:
            case Fact(Kind.DEFINITION, rule, None):
                self._deleted.add(rule)
                self._makers.pop(rule, None)
                self._on_deleted(rule)
            case Fact(Kind.DEFINITION, rule):
                self._deleted.discard(rule)
            case Fact(Kind.VERSION, rule, version=number):
                version = fact.content(_Version.model_validate_json)
                actions = None if version is None else version.actions
                keep(self._versions.setdefault(rule, {}), number, actions)
                if version is not None and version.made_by is not None:
                    # Stays when the version is forgotten: its rows may not be sent yet.
                    self._makers.setdefault(rule, {})[number] = str(version.made_by)
            case Fact(Kind.ACTIVATION, rule):
                actions_of, events = fact.content(_read_activation) or (None, None)
                keep(self._activated, rule, actions_of)
                keep(self._events, rule, events or None)
            case _:
                return
        self._on_changed(rule)


def _read_activation(value: bytes) -> tuple[dict[int, _Actions], frozenset[str]]:
    activation = decode_activation(value)
    actions_of = {
        span.version: tuple(map(ActionSpec.model_validate, span.actions))
        for span in activation.spans
    }
    return actions_of, events_read(activation)
