"""Grants of a login: roles, attributes, and rules that allow, beside those of the file.

A claim of a token holds rules as a file of rights does, as JSON: `{"actions": ["publish"],
"topics": ["devices/%c/#"]}`. They are only for the client that brings them and only allow, so they
name neither clients nor `effect`, unless that is `allow`. Attributes are texts by name,
for which `%{name}` stands in topics of all rules.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pydantic import ValidationError

from mqlake.errors import MqlakeError
from mqlake.rights.model import RightsRule

MAX_GRANTED_RULES: Final = 100
MAX_GRANTED_ROLES: Final = 500
MAX_ATTRIBUTES: Final = 50
MAX_ATTRIBUTE_CHARACTERS: Final = 255
ATTRIBUTE_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,63}")
"""Name of an attribute that a login brings; those of a certificate have a dot."""

_ATTRIBUTES: Final = "attributes"
_ROLES: Final = "roles"
_RULES: Final = "rules"
_KEYS: Final = frozenset({"effect", "actions", "topics", "client_ids", "qos", "retain"})


class GrantsError(MqlakeError):
    """A login's grants are no roles, rules or attributes; says which, counted from 1."""


@dataclass(frozen=True, slots=True)
class Grants:
    """Roles, rules and attributes of one login."""

    roles: frozenset[str] = frozenset()
    rules: tuple[RightsRule, ...] = ()
    attributes: Mapping[str, str] = field(default_factory=dict)

    def members(self) -> dict[str, Any]:
        """Return them as JSON has them, for `grants_of`."""
        rules = [rule.model_dump(mode="json", exclude_defaults=True) for rule in self.rules]
        found: dict[str, Any] = {_ROLES: sorted(self.roles), _RULES: rules}
        return found | ({_ATTRIBUTES: dict(self.attributes)} if self.attributes else {})

    def with_attributes(self, more: Mapping[str, str]) -> "Grants":
        """Return them with further attributes, which replace those of the same name."""
        return replace(self, attributes={**self.attributes, **more}) if more else self


NO_GRANTS: Final = Grants()


def read_grants(roles: object, rules: object, attributes: object = None) -> Grants:
    """Return the grants in claims.

    Args:
        roles: A list of names, or one name; None: no roles.
        rules: A list of rules; None: no rules.
        attributes: Texts by name; None: none.

    Raises:
        GrantsError: They are something else, or too many.
    """
    names = [roles] if isinstance(roles, str) else [] if roles is None else roles
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise GrantsError("roles: expected a list of names")
    found = [] if rules is None else rules
    if not isinstance(found, list):
        raise GrantsError("rules: expected a list of rules")
    if len(names) > MAX_GRANTED_ROLES or len(found) > MAX_GRANTED_RULES:
        raise GrantsError(
            f"{len(names)} roles and {len(found)} rules, expected at most {MAX_GRANTED_ROLES} and "
            f"{MAX_GRANTED_RULES}"
        )
    compiled = tuple(_rule(one, number) for number, one in enumerate(found, 1))
    return Grants(frozenset(names), compiled, _read_attributes(attributes))


def _read_attributes(found: object) -> dict[str, str]:
    if found is None:
        return {}
    if not isinstance(found, dict) or len(found) > MAX_ATTRIBUTES:
        raise GrantsError(f"attributes: expected an object of at most {MAX_ATTRIBUTES} texts")
    for name, value in found.items():
        if not isinstance(name, str) or not ATTRIBUTE_NAME.fullmatch(name):
            raise GrantsError(f"attribute {name!r:.80}: expected letters, digits, _ and -")
        if not isinstance(value, str) or len(value) > MAX_ATTRIBUTE_CHARACTERS:
            most = MAX_ATTRIBUTE_CHARACTERS
            raise GrantsError(f"attribute {name}: expected a text of at most {most} characters")
    return found


def grants_of(members: Mapping[str, Any]) -> Grants:
    """Undo `Grants.members`.

    Raises:
        GrantsError: They are something else.
    """
    found = members.get(_ATTRIBUTES) or {}
    of_certificate = {name: one for name, one in found.items() if "." in name}
    brought = {name: one for name, one in found.items() if "." not in name}
    grants = read_grants(members.get(_ROLES), members.get(_RULES), brought)
    return grants.with_attributes(of_certificate)


def _rule(found: object, number: int) -> RightsRule:
    if not isinstance(found, dict):
        raise GrantsError(f"rule {number}: expected an object")
    if unknown := sorted(str(key) for key in found.keys() - _KEYS):
        raise GrantsError(f"rule {number} has {unknown[0]!r}, expected {', '.join(sorted(_KEYS))}")
    if found.get("effect", "allow") != "allow":
        raise GrantsError(f"rule {number}: a rule that comes with a login only allows")
    try:
        return RightsRule.model_validate({"effect": "allow", **found})
    except ValidationError as exc:
        problem = exc.errors(include_input=False, include_url=False)[0]
        place = ".".join(map(str, problem["loc"]))
        text = problem["msg"].removeprefix("Value error, ")
        raise GrantsError(f"rule {number}: {': '.join(filter(None, [place, text]))}") from exc
