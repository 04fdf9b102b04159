"""Changes of rules: each is records of `mqlake.rules`, its version first, and a new version.

A version's number is never used again, also when a rule is deleted and made anew: with the position
of a message it tells an output from all others.
"""

import secrets
from typing import Final

from api.log import LogAppender
from api.repository import InTheWay, NotThere, RecordKind, Repository
from api.rules.materialised import Entry, MaterialisedRules, encode_rule
from mqlake.clock import Clock
from mqlake.errors import MqlakeError
from mqlake.records import RULES
from mqlake.rule_records import RulesKey, rules_key
from rules.model import MAX_VERSIONS, Rule, RuleBody

MAX_RULES: Final = 10_000
"""Of a tenant, also if its limits allow more."""
ANSWER_SECONDS: Final = 3.0
"""How long a change waits for the engine."""


class VersionConflict(MqlakeError):  # noqa: N818
    """Somebody else has changed the rule meanwhile."""


class RuleChanges(Repository[RulesKey, Rule, MaterialisedRules]):
    """Writes changes, one after the other.

    Args:
        log: As of all.
        view: As of all.
        clock: As of all.
        answer_seconds: How long a change waits for the engine, where nobody says.
    """

    kind = RecordKind(RULES, rules_key, encode_rule, lambda key: f"rule {key.rule!r}")

    def __init__(
        self,
        log: LogAppender,
        view: MaterialisedRules,
        clock: Clock,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        super().__init__(log, view, clock)
        self._answer_seconds = answer_seconds

    def create(
        self, tenant: str, rule_id: str | None, body: RuleBody, by: str, most: int = 0
    ) -> Rule:
        """Make a rule.

        Args:
            tenant: Whose.
            rule_id: None: it is given one.
            body: Its content.
            by: Name of its maker.
            most: Rules that its tenant may have; 0: any number.

        Raises:
            InTheWay: There is one with this identifier.
            InTheWay: There are as many as there may be.
            LogError: The log does not answer; the other methods raise it too.
        """
        with self._lock:
            if rule_id is None:
                rule_id = f"rule_{secrets.token_hex(4)}"
            if self._view.get(tenant, rule_id) is not None:
                raise InTheWay(f"there is a rule {rule_id!r}: change it with PUT")
            most = min(most or MAX_RULES, MAX_RULES)
            if len(self._view.all(tenant)) >= most:
                raise InTheWay(f"there are {most} rules, which is the limit")
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
        self, tenant: str, rule_id: str, body: RuleBody, by: str, expected: int | None
    ) -> Rule:
        """Give a rule another content, as a new version; without a difference nothing happens.

        A rule that the engine has given up is started again by any change, also by this one when
        the content is the same. So is one that was somebody else's: from then on it is his.

        Args:
            tenant: Of the rule.
            rule_id: Of the rule.
            body: The content.
            by: Name of the user who gives it.
            expected: The version that the caller knows; None: any.

        Raises:
            NotThere: There is none.
            VersionConflict: The newest version is another.
        """
        with self._lock:
            entry = self._existing(tenant, rule_id, expected)
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
        """Wait until the engine has told the state of a rule that was written.

        Args:
            rule: As `create` or `replace` returned it.
            seconds: None: as long as changes wait.
        """
        wait = self._answer_seconds if seconds is None else seconds
        entry = self._view.await_answer(rule.tenant, rule.id, rule.version, wait)
        if entry is None or entry.rule.version < rule.version:
            # Somebody was quicker with the next change.
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
