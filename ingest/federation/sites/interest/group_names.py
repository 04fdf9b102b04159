"""Names of share groups and of the ways to them: here, in the federation, and in routes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from ingest.federation.filters import meet
from mqlake.topics.names import SHARE_PREFIX, split_shared

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ingest.federation.prefixes import Prefixes

PREFIX: Final = "federation-"
_WAY: Final = re.compile(rf"{PREFIX}\d+-\d+", re.ASCII)


def way_name(site: int, neighbour: int) -> str:
    """Return the name that stands for a neighbour where routes have that of a gateway."""
    return f"{PREFIX}{site}-{neighbour}"


def is_way(gateway: str) -> bool:
    """Tell whether a name is one of `way_name`, of any site."""
    return _WAY.fullmatch(gateway) is not None


def neighbour_of(site: int, gateway: str) -> int | None:
    """Undo `way_name`; None: it is a gateway."""
    before = f"{PREFIX}{site}-"
    number = gateway.removeprefix(before)
    return int(number) if gateway.startswith(before) and number.isdecimal() else None


def to_federated(group: str, prefixes: Prefixes) -> str:
    """Return the name at other sites of a group of this one."""
    found = split_shared(group)
    return f"{SHARE_PREFIX}{found.share_name}/{prefixes.to_federated(found.topic_filter)}"


def to_local(group: str, prefixes: Prefixes) -> str:
    """Undo `to_federated`."""
    found = split_shared(group)
    return f"{SHARE_PREFIX}{found.share_name}/{prefixes.to_local(found.topic_filter)}"


def may_come(group: str, allowed: Iterable[str]) -> bool:
    """Tell whether messages of a group may come from other sites at all."""
    topic_filter = split_shared(group).topic_filter
    return not topic_filter.startswith("$") and any(meet(one, topic_filter) for one in allowed)
