"""Readers of the log for deliveries, tables and rules, and the records that each still needs."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, KafkaException, TopicPartition

from mqlake.errors import InvalidRecord
from mqlake.log.options import consumer_options
from mqlake.records import federation as federation_records
from mqlake.records.messages import DEAD_LETTERS, EVENTS, INBOUND, OUTPUTS
from rules.runner.checkpoint import decode_checkpoint
from streaming import queries
from streaming.log.checkpoints import Offsets, checkpoint, settled
from streaming.reading.log_retention import RetainingReader
from streaming.rules.in_force import RulesInForce
from streaming.rules.plans import StatefulRun
from streaming.rules.run_marks import is_ended, run_folder
from streaming.settings.spark import StreamingSettings

_RUNNER: Final = "rules runner"
_FEDERATOR: Final = "federation"
_ANSWER_SECONDS: Final = 5.0

Known = Callable[[Path], Offsets | None]
"""`settled` or `committed` of `streaming.log.checkpoints`."""


class Readers:
    """Finds out how far they are; from any thread.

    Args:
        settings: Folder of checkpoints.
        in_force: Knows which rules are.
        retained: Returns from where on of `mqlake.inbound` gateways read retained messages, beside
            the table.
        runner: Returns the positions of the runner of actions in `mqlake.outputs`; None while they
            are not known.
        federation: Returns the federator; None when there was never one.
    """

    def __init__(
        self,
        settings: StreamingSettings,
        in_force: RulesInForce,
        retained: Callable[[], Mapping[int, int]],
        runner: Callable[[], dict[int, int] | None],
        federation: Callable[[], RetainingReader | None],
    ) -> None:
        self._settings = settings
        self._in_force = in_force
        self._retained = retained
        self._runner = runner
        self._federation = federation

    def __call__(self) -> list[RetainingReader] | None:
        """Return all there are; None while it is not known which rules there are."""
        readers = self.of_messages(settled)
        if readers is None:
            return None
        return [
            *readers,
            self._query(settled, queries.OUTPUTS, (OUTPUTS, DEAD_LETTERS)),
            # The table has all that is before where the query is, though it may not say so yet.
            RetainingReader(
                "retained messages", {INBOUND: dict(self._retained()) or None}, misses=False
            ),
            RetainingReader(_RUNNER, {OUTPUTS: self._runner()}),
        ]

    def of_messages(self, known: Known) -> list[RetainingReader] | None:
        """Return those who read `mqlake.inbound` all the time; None as above.

        Args:
            known: Returns how far a query has come, by its folder.
        """
        runs = self._in_force.runs
        if runs is None:
            return None
        of_rules = known(checkpoint(self._settings.data_dir, queries.RULES)) or {}
        needed = self._in_force.needed(of_rules)
        found = [
            # It tells itself of records that it misses, as the query of rules does.
            self._query(known, queries.ROUTER, (INBOUND,), misses=False),
            self._query(known, queries.HISTORY, (INBOUND,)),
            self._query(known, queries.STATE, (INBOUND, EVENTS)),
        ]
        federation = self._federation()
        if federation is not None:
            found.append(federation)
        if needed is not None:
            found.append(RetainingReader(queries.RULES, needed, misses=False))
        for run in runs:
            if not is_ended(self._settings.data_dir, run.name):
                positions = position_of_run(self._settings.data_dir, run, known)
                found.append(RetainingReader(f"rule {run.tenant}/{run.rule}", positions))
        return found

    def _query(
        self, known: Known, name: str, log_topics: tuple[str, ...], *, misses: bool = True
    ) -> RetainingReader:
        done = known(checkpoint(self._settings.data_dir, name)) or {}
        positions = {log_topic: done.get(log_topic) for log_topic in log_topics}
        return RetainingReader(name, positions, misses=misses)


def position_of_run(data_dir: Path, run: StatefulRun, known: Known) -> Offsets:
    """Return how far a stateful version has come; where it began when that is not known."""
    starts = {name: dict(enumerate(one.starts)) for name, one in run.span.sources.items()}
    return starts | (known(run_folder(data_dir, run.name)) or {})


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
        self._options = consumer_options(bootstrap_servers, "mqlake-readers")

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


class RunnerPositions:
    """Says how far the runner of actions is."""

    def __init__(self, last: Callable[[], bytes | None]) -> None:
        self._last = last

    def __call__(self) -> dict[int, int] | None:
        """Return per partition of `mqlake.outputs` the first offset that it is not done with."""
        try:
            checkpoint = decode_checkpoint(self._last() or b"")
        except (LookupError, InvalidRecord):
            return None
        return {partition: position.offset for partition, position in checkpoint.positions.items()}


class FederationPositions:
    """Says how far other sites have this one's log."""

    def __init__(self, last: Callable[[], bytes | None]) -> None:
        self._last = last

    def __call__(self) -> RetainingReader | None:
        """Return the federator as a reader; None while there was never one."""
        try:
            checkpoint = federation_records.decode_checkpoint(self._last() or b"")
        except LookupError:
            return None
        except InvalidRecord:
            return RetainingReader(_FEDERATOR, {INBOUND: None})
        positions = dict(checkpoint.read)
        followed = [*checkpoint.links.values(), checkpoint.retained]
        needed = federation_records.needed(one for one in followed if one is not None)
        for partition, offset in needed.items():
            positions[partition] = min(offset, positions.get(partition, offset))
        return RetainingReader(_FEDERATOR, {INBOUND: positions})
