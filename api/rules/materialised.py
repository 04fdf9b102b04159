"""Every rule as `mqlake.rules` has it: definitions, versions, and their activations.

In memory: rules are hundreds, and each is small. A thread follows the log; records that the API
itself writes are taken at once, so that a caller who has changed a rule finds it changed.
"""

import time
from dataclasses import dataclass

from api.log.materialised import MaterialisedView
from api.rules.rerun_log import Begin, decode_begin
from mqlake.records.rule_facts import Fact, keep, read_fact
from mqlake.records.rules import (
    Activation,
    Kind,
    LeftUnread,
    RulesKey,
    decode_activation,
    rerun_key,
    rules_key,
)
from rules.model import Rule, RuleState
from rules.schemas.registry import NO_SCHEMAS, SchemaRegistry, Schemas

Name = tuple[str, str]
"""Tenant and identifier of a rule."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A rule and its last activation by the engine."""

    rule: Rule
    activation: Activation | None
    schemas: Schemas = NO_SCHEMAS
    """Schemas of its tenant."""

    @property
    def is_answered(self) -> bool:
        """Tell whether the engine has looked at the newest version."""
        return self.activation is not None and self.activation.version >= self.rule.version

    @property
    def state(self) -> RuleState:
        if self.activation is None or not self.is_answered:
            return "starting"
        return self.activation.state

    @property
    def error(self) -> str | None:
        return self.activation.error if self.activation is not None and self.is_answered else None

    @property
    def unread(self) -> LeftUnread | None:
        return self.activation.unread if self.activation is not None and self.is_answered else None


class MaterialisedRules(MaterialisedView):
    """All known rules; safe to use from any thread."""

    def _begin_anew(self) -> None:
        super()._begin_anew()
        self._rules: dict[Name, Rule] = {}
        self._versions: dict[Name, dict[int, Rule]] = {}
        self._activations: dict[Name, Activation] = {}
        self._schemas = SchemaRegistry()
        self._reruns: dict[Name, Begin] = {}

    def get(self, tenant: str, rule_id: str) -> Entry | None:
        with self._changed:
            return self._entry((tenant, rule_id))

    def tenants(self) -> list[str]:
        """Return the tenants that have rules, by name."""
        with self._changed:
            return sorted({tenant for tenant, _ in self._rules})

    def all(self, tenant: str) -> list[Entry]:
        """Return a tenant's rules by identifier."""
        with self._changed:
            names = sorted(name for name in self._rules if name[0] == tenant)
            return [entry for name in names if (entry := self._entry(name)) is not None]

    def left_of(self, tenant: str) -> list[bytes]:
        """Return the keys that are left of a tenant whose rules are deleted."""
        with self._changed:
            versions = [
                rules_key(RulesKey("version", tenant, rule_id, number))
                for (of, rule_id), found in self._versions.items()
                if of == tenant
                for number in found
            ]
            reruns = [rerun_key(*name) for name in self._reruns if name[0] == tenant]
            return [*versions, *reruns]

    def rerun_begin(self, tenant: str, rule_id: str) -> Begin | None:
        """Return the position at which the last run of a rule's dead letters began."""
        with self._changed:
            return self._reruns.get((tenant, rule_id))

    def schemas(self, tenant: str) -> Schemas:
        """Return a tenant's schemas as they are now."""
        with self._changed:
            return self._schemas.of(tenant)

    def versions(self, tenant: str, rule_id: str) -> list[Rule]:
        """Return the versions that are kept, the newest first; also those of a deleted rule."""
        with self._changed:
            found = self._versions.get((tenant, rule_id), {})
            return [found[number] for number in sorted(found, reverse=True)]

    def await_answer(
        self, tenant: str, rule_id: str, version: int, timeout_seconds: float
    ) -> Entry | None:
        """Return a rule as soon as the engine has answered for a version, at the latest in time."""
        end = time.monotonic() + timeout_seconds
        name = (tenant, rule_id)
        with self._changed:
            while True:
                entry = self._entry(name)
                activation = self._activations.get(name)
                left = end - time.monotonic()
                if (activation is not None and activation.version >= version) or left <= 0:
                    return entry
                self._changed.wait(left)

    def _entry(self, name: Name) -> Entry | None:
        rule = self._rules.get(name)
        if rule is None:
            return None
        return Entry(rule, self._activations.get(name), self._schemas.of(rule.tenant))

    def _take(self, data: bytes, value: bytes | None) -> None:
        match read_fact(data, value):
            case Fact(Kind.DEFINITION, name) as fact:
                keep(self._rules, name, fact.content(Rule.model_validate_json))
            case Fact(Kind.VERSION, name) as fact:
                found = fact.content(Rule.model_validate_json)
                keep(self._versions.setdefault(name, {}), fact.version, found)
            case Fact(Kind.ACTIVATION, name) as fact:
                keep(self._activations, name, fact.content(decode_activation))
            case Fact(Kind.RERUN, name) as fact:
                keep(self._reruns, name, fact.content(decode_begin))
            case Fact(Kind.SCHEMA) as fact:
                self._schemas.apply(fact)


def encode_rule(rule: Rule) -> bytes:
    return rule.model_dump_json().encode()
