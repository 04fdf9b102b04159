"""The lake's main, and its wiring: queries that write tables, stateful rules, maintenance."""

import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from mqlake.clock import SystemClock
from mqlake.log.admin import LogAdmin
from mqlake.log.growth_watch import GrowthWatch
from mqlake.log.log_topics import KEPT_A_WEEK_BYTES, KEPT_A_WEEK_MS
from mqlake.log.lost_end import REMEMBERED, noted_gaps
from mqlake.log.shorter import check_not_shorter
from mqlake.metrics.families import Families
from mqlake.metrics.server import MetricsServer
from mqlake.processes.heart import Heart
from mqlake.processes.heartbeat import INTERVAL_SECONDS
from mqlake.records.federation import FEDERATION
from mqlake.records.federation import KEY as FEDERATION_KEY
from mqlake.records.messages import (
    DEAD_LETTERS,
    EVENTS,
    GATEWAYS,
    INBOUND,
    METRICS,
    OUTPUTS,
    RULES,
    RUNNER,
    SESSIONS,
)
from rules.prometheus import add_actions
from rules.runner.checkpoint import CHECKPOINT_KEY
from streaming import queries
from streaming.application.application import (
    LOCK_TIMEOUT_SECONDS,
    Engine,
    Look,
    Stop,
    run,
    run_engine,
)
from streaming.application.metrics import add_queries
from streaming.application.poison import PoisonGuard
from streaming.application.supervision import QueryJob, QuerySupervisor
from streaming.engine.exclusive import Lock
from streaming.engine.priority import SessionPriority
from streaming.engine.spark import HISTORY_POOL, OUTPUTS_POOL, STATE_POOL, start_spark, use_pool
from streaming.jobs import history, outputs, state, stateful
from streaming.lake.urgency import Urgency
from streaming.log.checkpoints import Offsets, checkpoint, checkpoints, committed
from streaming.log.sinks import ensure_undelivered
from streaming.reading.growth import Finish, LogGrowth, QueryPositions
from streaming.reading.log_retention import LogRetention, Retention
from streaming.reading.log_retention import figures as retention_figures
from streaming.reading.lost_end import pass_over_what_is_told
from streaming.reading.readers import (
    FederationPositions,
    LastRecord,
    Readers,
    RunnerPositions,
    position_of_run,
)
from streaming.reading.unread import Unread
from streaming.rules.detections import detected
from streaming.rules.in_force import RulesInForce
from streaming.rules.log import KafkaRuleLog
from streaming.rules.plans import SENDER, StatefulRun
from streaming.rules.references import References, relation
from streaming.rules.runs import Runs
from streaming.rules.signatures import Signatures
from streaming.rules.table_metrics import TableMetrics
from streaming.settings.lake import LakeSettings
from streaming.tables.deletion_clock import FILE, DeletionClock
from streaming.tables.events import rule_unread
from streaming.tables.maintenance import Maintenance
from streaming.tables.resting import rest
from streaming.tables.rule_tables import tidy_rule_tables
from streaming.tables.state import StateWriter
from streaming.tables.tables import create_tables, make_tables

_logger = logging.getLogger(__name__)

NAME: Final = "lake"
"""Name of the process, and of its folder in the data directory."""
JAVA: Final = ("-Xms128m",)
"""It takes as much of the heap as it needs, and gives back the rest."""
LOG_TOPICS: Final = (INBOUND, SESSIONS, EVENTS, GATEWAYS, RULES, OUTPUTS, DEAD_LETTERS, METRICS)
_STOP_TIMEOUT_SECONDS: Final = 2.0
_ARCHIVE_AFTER_SECONDS: Final = 30.0
"""Most classes are loaded then. The lake has more of them than the router, and may stand still."""


def main(settings: LakeSettings) -> int:
    """Run until SIGTERM or SIGINT; return the exit code.

    Raises:
        OperationalError: The machine or the settings do not allow it to run.
    """
    heart = Heart(NAME, settings.heartbeat_file)
    return run(settings, heart, partial(_start, settings, heart))


def _start(settings: LakeSettings, heart: Heart, stop: Stop) -> int:
    urgency = Urgency(
        SystemClock(),
        SessionPriority(),
        settings.niceness,
        settings.history_interval_seconds,
        settings.history_max_records,
    )
    urgency.begin()
    folder = settings.data_dir.absolute() / NAME
    lock = Lock(folder / "lock")
    lock.take(LOCK_TIMEOUT_SECONDS)
    clock = SystemClock()
    guard = PoisonGuard(settings.data_dir.absolute(), folder, clock)
    guard.find()
    start = partial(
        start_spark,
        settings,
        NAME,
        folder,
        settings.heap_mb,
        java=JAVA,
        inherited_fds=(lock.descriptor,),
    )
    made = make_tables(settings)  # readers need not wait for Spark
    return run_engine(
        settings,
        start,
        guard,
        heart,
        stop,
        clock,
        lambda engine: _Lake(engine, settings, made, urgency).run(),
    )


class _Lake:
    """The lake while Spark runs.

    Args:
        engine: Spark.
        settings: Settings of the process.
        made: Names of the tables that have just been made.
        urgency: Learns how far behind the history is.
    """

    def __init__(
        self, engine: Engine, settings: LakeSettings, made: frozenset[str], urgency: Urgency
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._made = made
        self._urgency = urgency
        self._partitions = engine.await_log(LOG_TOPICS)
        self._await_router()
        self._skipped = pass_over_what_is_told(
            checkpoints(settings.data_dir), queries.OF_THE_ROUTER
        )
        servers, clock = settings.log.servers, engine.clock
        self._log = LogAdmin(servers)
        watch = GrowthWatch(servers)
        self._growth = LogGrowth(watch)
        # Of requests for reference tables; other records go there, too.
        self._rules_log = KafkaRuleLog(servers, is_controllers=False)
        self._in_force = RulesInForce(
            KafkaRuleLog(servers, is_controllers=False, signatures=Signatures.of(settings))
        )
        self._unread = Unread(self._log.begins, self._rules_log.append, clock)
        self._deletion = DeletionClock(
            clock, settings.data_dir.absolute() / NAME / FILE, self._rules_log.append
        )
        self._tables = StateWriter(
            settings, checkpoint(settings.data_dir, queries.STATE), clock, wait=self._rest
        )
        self._table_metrics = TableMetrics(self._rules_log.append, self._in_force.is_known)
        self._readers = self._all_readers()
        self._finish = Finish(
            watch, partial(self._readers.of_messages, committed), self._rules_log.append
        )
        stateful.count_task_time(engine.spark)
        self._runs = Runs(
            clock,
            lambda: self._in_force.runs,
            self._start_run,
            stateful.RunCheckpoints(settings),
            settings.stateful_interval_seconds,
            lambda run, left: self._rules_log.append([rule_unread(run.tenant, run.rule, left)]),
        )
        self._queries = QuerySupervisor(clock, self._jobs(), partial(use_pool, engine.spark))

    def _jobs(self) -> tuple[QueryJob, ...]:
        rule_tables = outputs.Outputs(
            self._settings,
            self._engine.clock,
            self._in_force.table_actions,
            self._rest,
            self._table_metrics,
            self._in_force.run_names,
        )
        return (
            QueryJob(
                queries.HISTORY, partial(self._begin, queries.HISTORY, history.start), HISTORY_POOL
            ),
            QueryJob(
                queries.STATE,
                partial(self._begin, queries.STATE, self._start_state),
                STATE_POOL,
            ),
            QueryJob(
                queries.OUTPUTS,
                partial(self._begin, queries.OUTPUTS, outputs.start, rule_tables),
                OUTPUTS_POOL,
                when=lambda: self._in_force.has_rules,
            ),
        )

    def run(self) -> int:
        """Keep the tables until a signal to stop; return the exit code."""
        engine, settings = self._engine, self._settings
        with engine.heart.during("making the tables"):
            tidy_rule_tables(engine.spark, settings)
            create_tables(engine.spark, settings, self._made)
        self._queries.check()
        engine.stop.starting = False
        engine.begin("rules", self._in_force.run)
        references = References(engine.spark, settings, self._rules_log, engine.clock)
        engine.begin("references", references.run)
        remembering = threading.Thread(
            target=self._runs.run, args=(engine.stopping,), name="runs", daemon=True
        )
        remembering.start()
        maintenance = Maintenance(
            engine.spark, settings, self._tables, self._deletion, self._deletion.trouble
        )
        engine.begin("maintenance", maintenance.run)
        self._retention = self._log_retention()
        engine.begin("log-retention", self._retention.run)
        engine.begin("growth", self._finish.run)
        runs = stateful.checkpoints(settings)
        self._measured = engine.figures(
            lambda: [
                *self._queries.watched(checkpoints(settings.data_dir)),
                *self._runs.watched(runs),
            ]
        )
        metrics = MetricsServer(settings.metrics, engine.heart, self._add_figures)
        code = engine.watch(
            self._queries, self._measured, self._look, archive_after=_ARCHIVE_AFTER_SECONDS
        )
        if code == 0:
            self._tables.close(_STOP_TIMEOUT_SECONDS)
            self._queries.stop()
            remembering.join(_STOP_TIMEOUT_SECONDS)
        metrics.close()
        return code

    def _await_router(self) -> None:
        """Wait until the router has reported records that the log has lost of its end, if any."""
        while noted_gaps(checkpoints(self._settings.data_dir)):
            time.sleep(INTERVAL_SECONDS / 2)
            self._engine.heart.beat(
                healthy=False, detail="waiting for the router to tell what the log has lost"
            )

    def _begin(
        self, name: str, start: Callable[..., StreamingQuery], *what: object
    ) -> StreamingQuery:
        """Tell first of records that a query will pass over by itself; then start it.

        Raises:
            OperationalError: The log has lost records that it has read.
        """
        positions = committed(checkpoint(self._settings.data_dir, name))
        for log_topic, reached in (positions or {}).items():
            if log_topic in REMEMBERED:
                check_not_shorter(name, log_topic, reached, self._log.ends(log_topic))
        self._unread.look(name, positions)
        skipped = self._skipped.get(name, 0)
        return start(self._engine.spark, self._settings, *what, skipped=skipped)

    def _start_state(
        self, spark: SparkSession, settings: LakeSettings, *, skipped: int
    ) -> StreamingQuery:
        count = self._growth.begin(queries.STATE, self._done_of_state())
        return state.start(
            spark, settings, self._tables, self._partitions | {INBOUND: count}, skipped
        )

    def _start_run(self, run: StatefulRun, interval_seconds: float) -> StreamingQuery:
        spark, settings = self._engine.spark, self._settings

        def reference(session: SparkSession, name: str) -> DataFrame:
            return relation(session, settings, run.tenant, name)

        ensure_undelivered(settings, SENDER)
        count = self._growth.begin(run.name, position_of_run(settings.data_dir, run, committed))
        read = self._partitions | {INBOUND: count}
        return stateful.start(spark, settings, run, read, reference, detected, interval_seconds)

    def _grow(self) -> None:
        """Have queries read new partitions once they have passed the cut."""
        if self._growth.due({queries.STATE: self._done_of_state}):
            self._queries.restart(queries.STATE)
        position = partial(position_of_run, self._settings.data_dir, known=committed)
        runs: dict[str, QueryPositions] = {
            run.name: partial(position, run) for run in self._runs.running()
        }
        for name in self._growth.due(runs):
            self._runs.restart(name)

    def _rest(self, seconds: float) -> None:
        """Wait so long, more while `messages` is late, and not while the log grows."""
        rest(
            seconds,
            self._engine.clock,
            self._engine.stopping.wait,
            is_late=self._urgency.is_late,
            is_over=lambda: self._growth.is_under_way,
        )

    def _done_of_state(self) -> Offsets | None:
        return committed(checkpoint(self._settings.data_dir, queries.STATE))

    def _look(self, trouble: str) -> Look:
        skipped = self._engine.guard.look(self._engine.spark)
        self._grow()
        history_ = self._measured.latest.get(queries.HISTORY, {})
        behind_ms = self._measured.behind_ms(queries.HISTORY)
        self._urgency.take(behind_ms, history_.get("lag_records"))
        figures = {"stateful_rules": self._runs.figures()} | retention_figures(self._retention)
        detail = (trouble or "keeping the tables") + self._growth.told()
        if waits_for := self._finish.waits_for:
            detail += f", waits for {', '.join(waits_for)}"
        if trouble := self._deletion.trouble():
            detail += f"; {trouble}"
        if skipped:
            detail += f"; passes over {len(skipped)} messages that ended Spark"
        return Look(not trouble, detail, figures, waits=self._growth.is_under_way)

    def _add_figures(self, families: Families) -> None:
        add_queries(families, self._measured, self._engine.clock)
        add_actions(families, self._table_metrics.rules)

    def _all_readers(self) -> Readers:
        servers = self._settings.log.servers
        return Readers(
            self._settings,
            self._in_force,
            lambda: self._tables.next_offsets,
            RunnerPositions(LastRecord(servers, RUNNER, CHECKPOINT_KEY)),
            FederationPositions(LastRecord(servers, FEDERATION, FEDERATION_KEY)),
        )

    def _log_retention(self) -> LogRetention:
        settings = self._settings
        retention: dict[str, Retention] = {}
        if settings.log_retention_hours is not None:
            messages = Retention(
                round(settings.log_retention_hours * 3_600_000), settings.log_retention_bytes
            )
            week = Retention(KEPT_A_WEEK_MS, KEPT_A_WEEK_BYTES)
            retention = {INBOUND: messages, OUTPUTS: messages, EVENTS: week, DEAD_LETTERS: week}
        return LogRetention(
            self._log,
            retention,
            self._readers,
            self._unread,
            self._deletion,
            settings.log_disk.folder,
        )
