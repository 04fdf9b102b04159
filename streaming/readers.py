"""Who reads the log for deliveries, tables and rules, and what each of them still needs of it."""

from collections.abc import Callable, Mapping
from typing import Final

from confluent_kafka import Consumer, KafkaException, TopicPartition

from mqlake import federation_records
from mqlake.errors import InvalidRecord
from mqlake.log.security import client_config
from mqlake.records import DEAD_LETTERS, EVENTS, INBOUND, OUTPUTS
from rules.runner.checkpoint import decode_checkpoint
from streaming.checkpoints import Offsets, later, settled
from streaming.jobs import history, outputs, router, rules, state, stateful
from streaming.log_retention import Reader
from streaming.rules.controller import RuleController
from streaming.settings import StreamingSettings

_RUNNER: Final = "rules runner"
_FEDERATOR: Final = "federation"
_ANSWER_SECONDS: Final = 5.0


class Readers:
    """Finds out how far they are; from any thread.

    Args:
        settings: Where checkpoints are.
        controller: Knows which rules are in force.
        retained: Returns from where on of `mqlake.inbound` gateways read what is retained, beside
            the table.
        reached: Returns by query how far real-time queries are beyond their checkpoints.
        runner: Returns what the runner of actions is done with in `mqlake.outputs`; None while
            that is not known.
        federation: Returns the federator; None when there was never one.
    """

    def __init__(
        self,
        settings: StreamingSettings,
        controller: RuleController,
        retained: Callable[[], Mapping[int, int]],
        reached: Callable[[], Mapping[str, Offsets]],
        runner: Callable[[], dict[int, int] | None],
        federation: Callable[[], Reader | None],
    ) -> None:
        self._settings = settings
        self._controller = controller
        self._retained = retained
        self._reached = reached
        self._runner = runner
        self._federation = federation
        self._checkpoints = settings.data_dir.absolute() / "checkpoints"

    def __call__(self) -> list[Reader] | None:
        """Return all there are; None while it is not known which rules there are."""
        runs = self._controller.runs
        if runs is None:
            return None
        first = self._controller.first
        reached = self._reached()
        found = [
            self._query(router.NAME, (INBOUND,), reached.get(router.NAME, {})),
            self._query(history.NAME, (INBOUND,)),
            self._query(state.NAME, (INBOUND, EVENTS)),
            self._query(outputs.NAME, (OUTPUTS, DEAD_LETTERS)),
            # The table has all that is before where the query is, though it may not say so yet.
            Reader("retained messages", {INBOUND: dict(self._retained()) or None}, misses=False),
            Reader(_RUNNER, {OUTPUTS: self._runner()}),
        ]
        federation = self._federation()
        if federation is not None:
            found.append(federation)
        if first is not None:
            found.append(self._rules(first, reached.get(rules.NAME, {})))
        for run in runs:
            if not stateful.is_ended(self._settings, run.name):
                done = settled(stateful.checkpoints(self._settings) / run.name) or {}
                starts = {
                    log_topic: dict(enumerate(range_.starts))
                    for log_topic, range_ in run.span.sources.items()
                }
                found.append(Reader(f"rule {run.tenant}/{run.rule}", starts | done))
        return found

    def _query(
        self, name: str, log_topics: tuple[str, ...], reached: Offsets | None = None
    ) -> Reader:
        done = settled(self._checkpoints / name) or {}
        places = {log_topic: done.get(log_topic) for log_topic in log_topics}
        return Reader(name, places, reached or {})

    def _rules(self, first: Offsets, reached: Offsets) -> Reader:
        """The query reads on where it was, but needs nothing before `first`."""
        done = settled(rules.checkpoint(self._settings)) or {}
        return Reader(rules.NAME, later(first, done), reached)


class LastRecord:
    """Asks the log for the last record of a log topic that has one key and one partition.

    Args:
        bootstrap_servers: host:port[,host:port…].
        log_topic: Whose.
        key: That it must have.
    """

    def __init__(self, bootstrap_servers: str, log_topic: str, key: bytes) -> None:
        self._place = (log_topic, 0)
        self._key = key
        self._options = {
            **client_config(bootstrap_servers),
            "client.id": "mqlake-readers",
            "group.id": "mqlake",
            "enable.auto.commit": False,
            "allow.auto.create.topics": False,
            "log_level": 2,
        }

    def __call__(self) -> bytes | None:
        """Return its value; None when there is none, or the log does not answer.

        Raises:
            LookupError: There is no such log topic.
        """
        consumer = Consumer(self._options)
        try:
            if self._place[0] not in consumer.list_topics(timeout=_ANSWER_SECONDS).topics:
                raise LookupError(f"no log topic {self._place[0]}")
            _, end = consumer.get_watermark_offsets(
                TopicPartition(*self._place), timeout=_ANSWER_SECONDS
            )
            if not end:
                return None
            consumer.assign([TopicPartition(*self._place, end - 1)])
            record = consumer.poll(_ANSWER_SECONDS)
            if record is None or record.error() is not None or record.key() != self._key:
                return None
            value = record.value()
        except KafkaException:
            return None
        finally:
            consumer.close()
        return value if isinstance(value, bytes) else b""


class RunnerPlaces:
    """Says what the runner of actions is done with."""

    def __init__(self, last: Callable[[], bytes | None]) -> None:
        self._last = last

    def __call__(self) -> dict[int, int] | None:
        """Return per partition of `mqlake.outputs` the first offset that it is not done with."""
        try:
            checkpoint = decode_checkpoint(self._last() or b"")
        except (LookupError, InvalidRecord):
            return None
        return {partition: place.offset for partition, place in checkpoint.places.items()}


class FederationPlaces:
    """Says what other sites have of this one's log."""

    def __init__(self, last: Callable[[], bytes | None]) -> None:
        self._last = last

    def __call__(self) -> Reader | None:
        """Return the federator as a reader; None while there was never one."""
        try:
            checkpoint = federation_records.decode_checkpoint(self._last() or b"")
        except LookupError:
            return None
        except InvalidRecord:
            return Reader(_FEDERATOR, {INBOUND: None})
        places = dict(checkpoint.read)
        followed = [*checkpoint.links.values(), checkpoint.retained]
        needed = federation_records.needed(one for one in followed if one is not None)
        for partition, offset in needed.items():
            places[partition] = min(offset, places.get(partition, offset))
        return Reader(_FEDERATOR, {INBOUND: places})
