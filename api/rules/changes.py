"""Changes of rules: each is records of `mqlake.rules`, its version first, and a new version.

A version's number is never used again, also when a rule is deleted and made again: with the
position of a message it tells an output from all others.
"""

import secrets
from collections.abc import Callable, Collection
from typing import Final

from api.log.appending import LogAppender
from api.log.repository import InTheWay, NotThere, RecordKind, Repository
from api.rules.materialised import Entry, MaterialisedRules, encode_rule
from mqlake.clock import Clock
from mqlake.errors import MqlakeError
from mqlake.records.messages import RULES
from mqlake.records.rule_tables import MOST_TABLES
from mqlake.records.rules import RulesKey, rules_key
from mqlake.records.tenants import NO_LIMITS, TenantLimits
from rules.model import MAX_VERSIONS, Rule, RuleBody

MAX_RULES: Final = 10_000
"""Most rules of a tenant, also if its limits allow more."""
ANSWER_SECONDS: Final = 3.0
"""How long a change waits for the engine."""


class VersionConflict(MqlakeError):  # noqa: N818
    """Another caller has changed the rule meanwhile."""


class RuleChanges(Repository[RulesKey, Rule, MaterialisedRules]):
    """Writes changes, one after the other.

    Args:
        log: As of all.
        view: As of all.
        clock: As of all.
        tables: Returns the names of the tables that a tenant's rules have written.
        answer_seconds: How long a change waits for the engine by default.
    """

    kind = RecordKind(RULES, rules_key, encode_rule, lambda key: f"rule {key.rule!r}")

    def __init__(
        self,
        log: LogAppender,
        view: MaterialisedRules,
        clock: Clock,
        tables: Callable[[str], Collection[str]],
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        super().__init__(log, view, clock)
        self._tables = tables
        self._answer_seconds = answer_seconds

    def create(
        self,
        tenant: str,
        rule_id: str | None,
        body: RuleBody,
        by: str,
        limits: TenantLimits = NO_LIMITS,
    ) -> Rule:
        """Make a rule.

        Args:
            tenant: Whose.
            rule_id: None: it is given one.
            body: Its content.
            by: Name of its maker.
            limits: Limits of its tenant.

        Raises:
            InTheWay: There is one with this identifier.
            InTheWay: There are as many rules, or tables of rules, as there may be.
            LogError: The log does not answer; the other methods raise it too.
        """
        with self._lock:
            if rule_id is None:
                rule_id = f"rule_{secrets.token_hex(4)}"
            if self._view.get(tenant, rule_id) is not None:
                raise InTheWay(f"there is a rule {rule_id!r}: change it with PUT")
            most = min(limits.rules or MAX_RULES, MAX_RULES)
            if len(self._view.all(tenant)) >= most:
                raise InTheWay(f"there are {most} rules, which is the limit")
            self._check_tables(tenant, rule_id, body, limits.rule_tables)
            earlier = self._view.versions(tenant, rule_id)  # of a deleted one
            now_ms = self._clock.now_ms()
            rule = Rule(
                **dict(body),
                id=rule_id,
                tenant=tenant,
                version=earlier[0].version + 1 if earlier else 1,
                created_at=now_ms,
                updated_at=now_ms,
                made_by=by,
            )
            self._write(rule)
            return rule

    def replace(
        self,
        tenant: str,
        rule_id: str,
        body: RuleBody,
        by: str,
        expected: int | None,
        limits: TenantLimits = NO_LIMITS,
    ) -> Rule:
        """Give a rule another content, as a new version; without a difference nothing happens.

        A rule that the engine has given up is started again by any change, also by this one when
        the content is the same. So is one of another maker: from then on it is the caller's.

        Args:
            tenant: Tenant of the rule.
            rule_id: Identifier of the rule.
            body: The content.
            by: Name of the user who gives it.
            expected: The version that the caller knows; None: any.
            limits: Limits of the tenant.

        Raises:
            NotThere: There is none.
            VersionConflict: The newest version is another.
            InTheWay: There are as many tables of rules as there may be.
        """
        with self._lock:
            entry = self._existing(tenant, rule_id, expected)
            self._check_tables(tenant, rule_id, body, limits.rule_tables)
            old = entry.rule
            is_same = body_of(old) == body and old.made_by == by
            if is_same and entry.state not in ("paused", "failed"):
                return old
            rule = Rule(
                **dict(body),
                id=rule_id,
                tenant=tenant,
                version=old.version + 1,
                created_at=old.created_at,
                updated_at=self._clock.now_ms(),
                made_by=by,
            )
            self._write(rule)
            return rule

    def await_answer(self, rule: Rule, seconds: float | None) -> Entry:
        """Wait until the engine has reported the state of a rule that was written.

        Args:
            rule: As `create` or `replace` returned it.
            seconds: None: as long as changes wait.
        """
        wait = self._answer_seconds if seconds is None else seconds
        entry = self._view.await_answer(rule.tenant, rule.id, rule.version, wait)
        if entry is None or entry.rule.version < rule.version:
            # Another caller was quicker with the next change.
            return Entry(rule, None, self._view.schemas(rule.tenant))
        return entry

    def delete(self, tenant: str, rule_id: str, expected: int | None) -> None:
        """Delete a rule and its versions, all but the number of the newest.

        Raises:
            NotThere: There is none.
            VersionConflict: The newest version is another.
        """
        with self._lock:
            entry = self._existing(tenant, rule_id, expected)
            old = [
                RulesKey("version", tenant, rule_id, one.version)
                for one in self._view.versions(tenant, rule_id)
                if one.version != entry.rule.version
            ]
            definition = RulesKey("definition", tenant, rule_id)
            self.write([(key, None) for key in (definition, *old)])

    def forget(self, tenant: str) -> None:
        """Forget the numbers of versions, too, of a tenant that has no rules any more."""
        with self._lock:
            self._delete(self._view.left_of(tenant), f"rule {tenant!r}")

    def _check_tables(self, tenant: str, rule_id: str, body: RuleBody, most: int) -> None:
        """Refuse a rule that writes tables beyond the limit; those that are known may stay."""
        wanted = {name for action in body.actions for name in action.tables()}
        if not wanted:
            return
        own: set[str] = set()
        others = set(self._tables(tenant))
        for entry in self._view.all(tenant):
            tables = own if entry.rule.id == rule_id else others
            tables.update(name for action in entry.rule.actions for name in action.tables())
        new = wanted - own - others
        most = min(most or MOST_TABLES, MOST_TABLES)
        if new and len(others | wanted) > most:
            names = ", ".join(repr(name) for name in sorted(new))
            raise InTheWay(
                f"rules write {len(others)} tables, and {names} would be new: {most} is the limit, "
                "tables of deleted rules included"
            )

    def _existing(self, tenant: str, rule_id: str, expected: int | None) -> Entry:
        entry = self._view.get(tenant, rule_id)
        if entry is None:
            raise NotThere(f"there is no rule {rule_id!r}: bin/mqlake rules list shows all")
        if expected is not None and expected != entry.rule.version:
            raise VersionConflict(
                f"rule {rule_id!r} is at version {entry.rule.version}, not {expected}: "
                "get it and change that"
            )
        return entry

    def _write(self, rule: Rule) -> None:
        kept = self._view.versions(rule.tenant, rule.id)[: MAX_VERSIONS - 1]
        old = self._view.versions(rule.tenant, rule.id)[len(kept) :]
        self.write(
            [
                (RulesKey("version", rule.tenant, rule.id, rule.version), rule),
                (RulesKey("definition", rule.tenant, rule.id), rule),
                *((RulesKey("version", rule.tenant, rule.id, one.version), None) for one in old),
            ]
        )


def body_of(rule: Rule) -> RuleBody:
    """Return the user's part of a rule."""
    return RuleBody(**{name: getattr(rule, name) for name in RuleBody.model_fields})
