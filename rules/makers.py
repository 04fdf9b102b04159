"""Makers of rules, and whether a rule stays within the present rights of its maker.

A rule acts with the rights of the maker of its version: of a key or an account of the API, as
`mqlake.access` has it at this moment. The API asks when a rule is made, the engine for as long as
it is in force, the process that runs actions before each of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from mqlake.errors import InvalidRecord, InvalidTopic
from mqlake.records.access import (
    ROLES,
    TOKEN_NAME,
    Account,
    ApiKey,
    Role,
    decode_access,
    decode_access_key,
    key_name,
)
from mqlake.topics.matching import covers
from mqlake.topics.names import validate_topic_name
from rules.model import ActionSpec
from rules.templates import Template

MAKING_ROLE: Final[Role] = "editor"


class MakerRights(Protocol):
    """Rights of a caller, a key or an account."""

    @property
    def role(self) -> Role: ...

    @property
    def topic_filters(self) -> tuple[str, ...] | None:
        """Return filters of the topics that he may use; None: all topics, and data without one."""

    @property
    def tenants(self) -> tuple[str, ...] | None:
        """Tenants that he may act for; None: all."""


@dataclass(frozen=True, slots=True)
class _All:
    role: Role = "admin"
    topic_filters: tuple[str, ...] | None = None
    tenants: tuple[str, ...] | None = None


ALL: Final = _All()
"""An administrator's."""


class Makers:
    """The keys and accounts that there are, kept up to date by `apply`."""

    def __init__(self) -> None:
        self._known: dict[str, ApiKey | Account] = {}

    def apply(self, data: bytes, value: bytes | None) -> str | None:
        """Take a record of `mqlake.access`; return the name whose rights it has; None: it has none.

        Raises:
            InvalidRecord: It cannot be read; whose it is has no rights any more.
        """
        found = decode_access_key(data)
        if found is None or found[0] == "session":
            return None
        kind, name = found
        maker = key_name(name) if kind == "key" else name
        self._known.pop(maker, None)
        if value is None:
            return maker
        said = decode_access(kind, value)
        if not isinstance(said, ApiKey | Account):
            raise InvalidRecord(f"{kind} {name} is a session")
        self._known[maker] = said
        return maker

    def rights(self, maker: str | None, now_ms: int) -> MakerRights | None:
        """Return the rights of a maker; None: there is none of this name any more.

        Args:
            maker: As a rule names him; None for a rule of before makers were noted, which is as
                good as an administrator's.
            now_ms: Keys that have expired by then have no rights.
        """
        if maker is None or maker == TOKEN_NAME:
            return ALL
        found = self._known.get(maker)
        if isinstance(found, ApiKey) and found.expires_at is not None:
            return found if now_ms < found.expires_at else None
        return found


def may_publish(rights: MakerRights, topic_name: str) -> bool:
    """Tell whether a rule with these rights may publish to a topic."""
    filters = rights.topic_filters
    return filters is None or any(covers(one, topic_name) for one in filters)


def why_not_at_all(rights: MakerRights | None, tenant: str) -> str | None:
    """Return why these rights allow no rules of a tenant, to follow the name; None: they do."""
    if rights is None:
        return "may not use the API any more"
    if ROLES.index(rights.role) < ROLES.index(MAKING_ROLE):
        return f"is {rights.role}, and rules need the role {MAKING_ROLE}"
    if rights.tenants is not None and tenant not in rights.tenants:
        return f"is not for the tenant {tenant}"
    return None


def why_not(
    rights: MakerRights | None,
    tenant: str,
    filters: Sequence[str],
    joined: Sequence[str],
    actions: Sequence[ActionSpec],
) -> str | None:
    """Return why a rule is beyond these rights, to follow the maker's name; None: it is not.

    Args:
        rights: His; None: he has none any more.
        tenant: Tenant of the rule.
        filters: Topic filters of all that it reads.
        joined: The reference tables that it joins.
        actions: Its actions. A topic with placeholders is known when a row is sent.
    """
    reason = why_not_at_all(rights, tenant)
    if reason is not None or rights is None or rights.topic_filters is None:
        return reason
    known = rights.topic_filters
    for topic_filter in filters:
        if not any(covers(one, topic_filter) for one in known):
            return f"may not read {topic_filter!r}"
    if joined:
        return f"is for some topics alone, and may not join the reference table {joined[0]}"
    for spec in actions:
        reason = _why_no_action(rights, spec)
        if reason is not None:
            return reason
    return None


def _why_no_action(rights: MakerRights, spec: ActionSpec) -> str | None:
    if spec.function != "republish":
        return f"is for some topics alone, and its rules may republish, not {spec.function}"
    topic = Template.parse(str(spec.args.get("topic", ""))).constant
    if topic and _is_name(topic) and not may_publish(rights, topic):
        return f"may not publish to {topic!r}"
    reasons = (_why_no_action(rights, inner) for inner in spec.fallback)
    return next((reason for reason in reasons if reason is not None), None)


def _is_name(topic: str) -> bool:
    try:
        validate_topic_name(topic)
    except InvalidTopic:
        return False  # nothing is ever published to it
    return True
