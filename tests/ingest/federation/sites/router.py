"""The router of a site in memory, as far as share groups go: what Spark does between two logs."""

from collections import defaultdict

from mqlake.errors import LogError
from mqlake.log.memory import MemoryLog
from mqlake.records.messages import (
    BARRIER_KEY_PREFIX,
    FLAG_UNSHARED,
    HEADER_SOURCE,
    INBOUND,
    ROUTES,
    LogRecord,
    Source,
    decode_barrier_key,
    decode_route_key,
    delivery_topic,
    encode_source,
    groups_of,
)
from mqlake.records.versions import HEADER_MQTT
from mqlake.topics.matching import filter_matches
from mqlake.topics.names import split_shared
from mqlake.topics.sharing import ShareWeight, choose_gateway, decode_weight


class Router:
    """Gives messages to gateways and neighbours.

    Args:
        log: Of the site.

    Attributes:
        given: By shared filter the payloads that gateways got for their members.
    """

    def __init__(self, log: MemoryLog) -> None:
        self.given: dict[str, list[bytes]] = defaultdict(list)
        self._marks: dict[tuple[str, int], int] = {}
        self._log = log
        self._next: dict[int, int] = defaultdict(int)
        self._notes: dict[int, list[tuple[int, int]]] = defaultdict(list)
        """By partition, where a barrier stood and up to which route it put in force."""
        self._in_force: dict[int, int] = defaultdict(lambda: -1)

    @property
    def in_force(self) -> int:
        """The offset of the last route that messages of all partitions go by."""
        partitions = range(len(self._log.partitions(INBOUND)))
        return min(self._in_force[partition] for partition in partitions)

    def route(self) -> None:
        """Take all that the log has."""
        for partition in range(len(self._log.partitions(INBOUND))):
            records = self._log.partitions(INBOUND)[partition].records
            for record in records[self._next[partition] :]:
                self._route(record)
            self._next[partition] = len(records)

    def crash(self, back: int) -> None:
        """Begin again some records before: what goes out once more is what went out."""
        for partition, end in self._next.items():
            self._next[partition] = start = max(0, end - back)
            noted = [at for offset, at in self._notes[partition] if offset < start]
            self._in_force[partition] = max(noted, default=-1)

    def _route(self, record: LogRecord) -> None:
        key = record.key or b""
        if key.startswith(BARRIER_KEY_PREFIX):
            barrier = decode_barrier_key(key)
            at = max(self._in_force[record.partition], barrier.routes_offset)
            self._in_force[record.partition] = at
            self._notes[record.partition].append((record.offset, at))
            self._deliver(barrier.gateway, record, [])
            return
        mqtt = dict(record.headers)[HEADER_MQTT]
        named = groups_of(mqtt)
        if not named and mqtt[2] & FLAG_UNSHARED:
            return
        tenant, _, topic = key.decode().partition("/")
        chosen: dict[str, list[str]] = {}
        for group, weights in self._groups(tenant, topic, self._in_force[record.partition]).items():
            if not named or group in named:
                gateway = choose_gateway(
                    group, weights, topic, "c", record.partition, record.offset
                )
                chosen.setdefault(gateway, []).append(group)
        for gateway, groups in chosen.items():
            self._deliver(gateway, record, groups)

    def _groups(self, tenant: str, topic: str, in_force: int) -> dict[str, dict[str, ShareWeight]]:
        found: dict[str, dict[str, ShareWeight]] = {}
        for record in self._log.records(ROUTES):
            route = decode_route_key(record.key or b"")
            plain = split_shared(route.topic_filter).topic_filter
            if record.offset > in_force or not route.is_shared or route.tenant != tenant:
                continue
            if not filter_matches(plain, topic):
                continue
            group = found.setdefault(route.topic_filter, {})
            if record.value is None:
                group.pop(route.gateway, None)
            else:
                group[route.gateway] = decode_weight(record.value)
        return {name: weights for name, weights in found.items() if weights}

    def _deliver(self, gateway: str, record: LogRecord, groups: list[str]) -> None:
        source = Source(record.partition, record.offset, record.timestamp_ms, tuple(groups))
        headers = [*record.headers, (HEADER_SOURCE, encode_source(source))]
        try:
            self._log.store(
                delivery_topic(gateway), record.key, record.value, headers, record.timestamp_ms, 0
            )
        except LogError:  # a gateway, of which there is none here
            if record.offset <= self._marks.get((gateway, record.partition), -1):
                return  # gateways drop what the router repeats
            self._marks[gateway, record.partition] = record.offset
            for group in groups:
                self.given[group].append(record.value or b"")
