"""Plans of topics that came not long ago, forgotten only where a filter changes.

A filter without wildcards concerns its own topic. One with wildcards concerns topics that begin as
it does before the first of them; topics are kept by their first levels for that. So clients that
come and go do not make a gateway ask its tree again for the topics of all others.
"""

from __future__ import annotations

from typing import Final, Generic, TypeVar

from mqlake.topics.names import SEPARATOR

Plan = TypeVar("Plan")

MAX_PLANS: Final = 20_000
"""Plans after which all are forgotten: the index by their levels is bounded by it, too."""

_WILDCARDS: Final = frozenset({"+", "#"})

PREFIX_LEVELS: Final = 3
"""Filters that differ only below count as one."""


class Plans(Generic[Plan]):
    """One thing for each topic of a tenant.

    Attributes:
        of_topic: By tenant and topic name; for looking up only.
    """

    def __init__(self) -> None:
        self.of_topic: dict[tuple[str, str], Plan] = {}
        # By tenant and first levels. Invariant: every topic with a plan is in all of its own; some
        # may be there that have none any more.
        self._beginning: dict[tuple[str, str], set[str]] = {}
        self._made = 0

    def put(self, tenant: str, topic_name: str, plan: Plan) -> None:
        """Keep the plan of a topic."""
        if self._made >= MAX_PLANS:
            self._clear()
        self._made += 1
        self.of_topic[tenant, topic_name] = plan
        beginning = self._beginning
        for prefix in _prefixes(topic_name):
            alike = beginning.get((tenant, prefix))
            if alike is None:
                beginning[tenant, prefix] = {topic_name}
            else:
                alike.add(topic_name)

    def forget(self, tenant: str, topic_filter: str) -> None:
        """Forget all topics that a plain filter matches, and maybe some that begin alike.

        Cost: that of making the forgotten plans, at most; so none is added to it.
        """
        names = topic_filter.split(SEPARATOR)
        literal = next((at for at, name in enumerate(names) if name in _WILDCARDS), None)
        if literal is None:
            self.of_topic.pop((tenant, topic_filter), None)
        elif not literal:
            self._clear()
        else:
            prefix = SEPARATOR.join(names[: min(literal, PREFIX_LEVELS)])
            for topic_name in self._beginning.pop((tenant, prefix), ()):
                self.of_topic.pop((tenant, topic_name), None)

    def _clear(self) -> None:
        self.of_topic.clear()
        self._beginning.clear()
        self._made = 0


def _prefixes(topic_name: str) -> list[str]:
    """Return the first level, the first two, and so on."""
    found: list[str] = []
    end = topic_name.find(SEPARATOR)
    while end >= 0 and len(found) < PREFIX_LEVELS:
        found.append(topic_name[:end])
        end = topic_name.find(SEPARATOR, end + 1)
    if len(found) < PREFIX_LEVELS:
        found.append(topic_name)
    return found
