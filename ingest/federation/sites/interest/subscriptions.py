"""Interest of the subscribers of one mqlake site, from the records of its log.

Three log topics say it: `mqlake.routes` of the clients that are connected, `mqlake.sessions` of
those that have a session and may be away, `mqlake.rules` of the rules that run. A filter, or a
share group (`group_names`), counts for as long as one record names it.

The summary grows by filters that it does not cover. To see those that it covers in vain all filters
are looked at (a second for 100,000), so that is done seldom, and by a caller who may be
interrupted.
"""

from __future__ import annotations

from collections import Counter
from itertools import islice
from sys import intern
from typing import TYPE_CHECKING, Final

from ingest.federation.filters import covers, summarise, uncovered
from ingest.federation.sites.interest.group_names import is_way, may_come, to_federated
from ingest.federation.sites.interest.interest import common
from mqlake.errors import InvalidRecord, InvalidTopic
from mqlake.records.messages import ROUTES, RULES, SESSIONS, LogRecord, decode_route_key
from mqlake.records.rule_facts import read_fact
from mqlake.records.rules import Kind, decode_activation
from mqlake.records.sessions import (
    SESSION,
    SUBSCRIPTION,
    decode_session,
    decode_sessions_key,
    decode_subscription_record,
)
from mqlake.topics.names import SHARE_PREFIX, validate_topic_filter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ingest.federation.prefixes import Prefixes

LOG_TOPICS: Final = (ROUTES, SESSIONS, RULES)

MOST_GROUPS: Final = 1_000
"""Share groups that other sites hear of: each by its name, so nothing summarises them."""


class SiteSubscriptions:
    """The filters of one site's subscribers, and the few that tell other sites of them.

    Args:
        tenant: Whose subscribers count.
        prefixes: Names of topics in the federation.
        allowed: Filters of the federation that may come here.
        always: Filters that are wanted without a subscriber, too.
        most: Filters of the summary.
    """

    def __init__(
        self,
        tenant: str,
        prefixes: Prefixes,
        allowed: Iterable[str],
        always: Iterable[str],
        most: int,
    ) -> None:
        self.malformed = 0
        """Records that cannot be read."""
        self._tenant = tenant
        self._prefixes = prefixes
        self._allowed = sorted(uncovered(allowed))
        self._most = most
        self._by_key: dict[tuple[str, bytes], tuple[str, ...]] = {}
        self._counted: Counter[str] = Counter()
        self._summary: frozenset[str] = frozenset()
        self._added: set[str] = set()
        """Not covered by the summary; while it is made again, all that have come since."""
        self._is_narrowing = False
        self._has_less = False
        self._groups_by_key: dict[tuple[str, bytes], tuple[str, ...]] = {}
        self._members: Counter[str] = Counter()
        self._kept: Counter[str] = Counter()
        self._has_other_groups = False
        self._count(self._federated(always))

    def __len__(self) -> int:
        """Return how many filters there are, each counted once."""
        return len(self._counted)

    @property
    def has_less(self) -> bool:
        """Tell whether a filter has gone since the summary was made of all."""
        return self._has_less

    def take(self, log_topic: str, records: Iterable[LogRecord]) -> bool:
        """Hear of records; return whether the summary covers less than is wanted now."""
        read = _READERS[log_topic]
        for record in records:
            try:
                filters = read(record, self._tenant)
            except InvalidRecord:
                self.malformed += 1
                continue
            if filters is None:
                continue
            key = (log_topic, record.key or b"")
            plain = [one for one in filters if not one.startswith("$")]
            self._set(key, self._federated(plain))
            shared = [one for one in filters if one.startswith(SHARE_PREFIX)]
            self._set_groups(key, self._federated_groups(shared))
        return bool(self._added) or self._has_other_groups

    def groups(self) -> frozenset[str]:
        """Return the share groups with members here, at most `MOST_GROUPS`.

        Further ones get the messages of this site alone.
        """
        self._has_other_groups = False
        return frozenset(islice(self._members, MOST_GROUPS))

    def has_members(self, group: str) -> bool:
        """Tell whether a group has a member here, connected or with a session."""
        return group in self._members

    def keeps(self, group: str) -> bool:
        """Tell whether a group has sessions here that outlive their connections.

        Messages of a group without a member wait for these.
        """
        return group in self._kept

    def summary(self) -> frozenset[str]:
        """Return a bounded number of filters that cover all that is wanted, and perhaps more."""
        if self._added:
            found = frozenset(summarise(self._summary | self._added, self._most))
            if self._is_narrowing:
                return found
            self._summary = found
            self._added.clear()
        return self._summary

    def begin_narrowing(self) -> Callable[[], set[str]]:
        """Return the function that makes a summary of all wanted filters, in any thread."""
        self.summary()
        self._is_narrowing, self._has_less = True, False
        filters, most = tuple(self._counted), self._most
        return lambda: summarise(filters, most)

    def end_narrowing(self, summary: Iterable[str]) -> None:
        """Take that summary, and filters that have come meanwhile."""
        self._is_narrowing = False
        self._summary = frozenset(summary)
        self._added = {one for one in self._added if self._is_added(one)}

    def _set(self, key: tuple[str, bytes], filters: tuple[str, ...]) -> None:
        before = self._by_key.pop(key, ())
        if filters:
            self._by_key[key] = filters
        if filters == before:
            return
        self._count(filters)
        for one in before:
            self._counted[one] -= 1
            if not self._counted[one]:
                del self._counted[one]
                self._has_less = True

    def _set_groups(self, key: tuple[str, bytes], groups: tuple[str, ...]) -> None:
        before = self._groups_by_key.pop(key, ())
        if groups:
            self._groups_by_key[key] = groups
        if groups == before:
            return
        counted = [self._members, self._kept] if key[0] == SESSIONS else [self._members]
        for counter in counted:
            counter.update(groups)
            counter.subtract(before)
            for one in before:
                if not counter[one]:
                    del counter[one]
        self._has_other_groups = True

    def _federated_groups(self, groups: Iterable[str]) -> tuple[str, ...]:
        found = {to_federated(one, self._prefixes) for one in groups}
        return tuple(
            sorted(one for one in found if may_come(one, self._allowed) and _is_valid(one))
        )

    def _count(self, filters: Iterable[str]) -> None:
        for one in filters:
            if one not in self._counted and (self._is_narrowing or self._is_added(one)):
                self._added.add(one)
            self._counted[one] += 1

    def _is_added(self, one: str) -> bool:
        return not any(covers(wide, one) for wide in self._summary)

    def _federated(self, filters: Iterable[str]) -> tuple[str, ...]:
        """Return the filters of the federation that local ones mean, as far as allowed."""
        found = {
            intern(one)
            for local in filters
            for federated in self._prefixes.to_federated_filters(local)
            for one in common(self._allowed, (federated,))
            if _is_valid(one)
        }
        return tuple(sorted(found))


def _is_valid(topic_filter: str) -> bool:
    """Tell whether other sites take a filter, which else ends each connection that tells of it.

    Names are longer in the federation, and sessions are older than what gateways refuse today.
    """
    try:
        validate_topic_filter(topic_filter)
    except InvalidTopic:
        return False
    return True


def _of_route(record: LogRecord, tenant: str) -> list[str] | None:
    route = decode_route_key(record.key or b"")
    if route.tenant != tenant or route.topic_filter.startswith("\0"):
        return None
    if route.is_shared and is_way(route.gateway):
        return None  # a way to members elsewhere
    return [route.topic_filter] if record.value is not None else []


def _of_session(record: LogRecord, tenant: str) -> list[str] | None:
    key = record.key or b""
    if key[:2] not in _OF_SESSIONS:
        return None
    names = decode_sessions_key(key)
    if names.tenant != tenant:
        return None
    if record.value is None:
        return []
    if names.kind == SUBSCRIPTION:
        found = [decode_subscription_record(record.value).subscription]
    else:
        found = decode_session(record.value).subscriptions
    return [one.topic_filter for one in found]


def _of_rule(record: LogRecord, tenant: str) -> list[str] | None:
    fact = read_fact(record.key, record.value)
    if fact is None or fact.kind is not Kind.ACTIVATION or fact.name[0] != tenant:
        return None
    activation = fact.content(decode_activation)
    current = None if activation is None else activation.current
    return [] if current is None else list(current.filters)


_OF_SESSIONS: Final = frozenset(f"{kind}/".encode() for kind in (SESSION, SUBSCRIPTION))
_READERS: Final[dict[str, Callable[[LogRecord, str], list[str] | None]]] = {
    ROUTES: _of_route,
    SESSIONS: _of_session,
    RULES: _of_rule,
}
