"""Rights as the text of a file, each rule always in the same words, to be compared."""

import json
import re
from difflib import unified_diff
from typing import Any, Final

from mqlake.rights.model import RightsFile

_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")


def write_rights(rights: RightsFile) -> str:
    """Return the TOML that `parse_rights` reads as the same."""
    lines = []
    if not rights.rules:
        lines.append("rules = []")
    if rights.roles:
        lines.append("[roles]")
        lines += [f"{_key(role)} = {_value(users)}" for role, users in rights.roles.items()]
    for rule in rights.rules:
        if lines:
            lines.append("")
        lines.append("[[rules]]")
        said = rule.model_dump(exclude_defaults=True)
        lines += [f"{name} = {_value(value)}" for name, value in said.items()]
    return "\n".join(lines) + "\n"


def difference(before: RightsFile | None, after: RightsFile, names: tuple[str, str]) -> str:
    """Return a unified diff of two files; "" when they say the same.

    Args:
        before: None: there was nothing.
        after: That would be in its place.
        names: Names of both, for the head.
    """
    old = "" if before is None else write_rights(before)
    lines = unified_diff(
        old.splitlines(keepends=True), write_rights(after).splitlines(keepends=True), *names
    )
    return "".join(lines)


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _value(name)


def _value(value: Any) -> str:
    """Return a value of TOML; its strings are those of JSON, but for one control character."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
