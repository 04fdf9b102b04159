"""Members of heartbeats about limits that gateways share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable

Told: TypeAlias = dict[str, dict[str, float]]
"""User or tenant (`u/ann`, `t/acme`) -> kind of limit -> demand a second, or count."""

_FIRST_TOLD: Final = ("messages", "bytes", "connections")
"""Kinds in the member `shared` of a heartbeat, as every release reads them."""


def to_members(told: Told) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return `shared` of a heartbeat, as every release reads it, and the later `shared_more`."""
    first, more = {}, {}
    for name, amounts in told.items():
        if any(kind in amounts for kind in _FIRST_TOLD):
            first[name] = [amounts.get(kind, 0.0) for kind in _FIRST_TOLD]
        if rest := {kind: one for kind, one in amounts.items() if kind not in _FIRST_TOLD}:
            more[name] = rest
    return first, more


def read_told(first: object, more: object) -> Told:
    """Return the shared limits of a heartbeat, without malformed parts."""
    told: Told = {}
    if isinstance(first, dict):
        for name, values in first.items():
            if isinstance(values, list) and len(values) == len(_FIRST_TOLD):
                told[str(name)] = _amounts(zip(_FIRST_TOLD, values, strict=True))
    if isinstance(more, dict):
        for name, values in more.items():
            if isinstance(values, dict):
                told[str(name)] = told.get(str(name), {}) | _amounts(values.items())
    return told


def _amounts(found: Iterable[tuple[Any, Any]]) -> dict[str, float]:
    return {str(kind): float(one) for kind, one in found if type(one) in {int, float} and one >= 0}
