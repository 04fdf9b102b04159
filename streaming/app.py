"""The Spark application's main: session, tables, queries, then watch until told to stop."""

import logging
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from mqlake.clock import Clock, SystemClock
from mqlake.errors import LogError
from mqlake.federation_records import FEDERATION
from mqlake.federation_records import KEY as FEDERATION_KEY
from mqlake.heartbeat import INTERVAL_SECONDS, write_heartbeat
from mqlake.log.admin import LogAdmin
from mqlake.log.log_topics import KEPT_A_WEEK_BYTES, KEPT_A_WEEK_MS
from mqlake.logs import set_up_logging
from mqlake.metrics.families import Families
from mqlake.metrics.server import MetricsServer, new_registry
from mqlake.records import (
    DEAD_LETTERS,
    EVENTS,
    INBOUND,
    METRICS,
    OUTPUTS,
    ROUTES,
    RULES,
    RUNNER,
    SESSIONS,
)
from rules.prometheus import add_actions
from rules.runner.checkpoint import CHECKPOINT_KEY
from streaming.calendar_watch import CalendarWatch
from streaming.checkpoints import committed, later, settled
from streaming.exclusive import hold
from streaming.figures import QueryFigures, Watched, read_done, read_heap, read_positions
from streaming.jobs import history, outputs, router, rules, state, stateful
from streaming.jvm.process import Jvm
from streaming.log_retention import LogRetention, Retention
from streaming.log_retention import figures as retention_figures
from streaming.log_topics import partition_counts
from streaming.lost_end import pass_over_lost_end
from streaming.metrics import add_queries
from streaming.poison import PoisonGuard
from streaming.positions import Positions
from streaming.readers import FederationPlaces, LastRecord, Readers, RunnerPlaces
from streaming.rules.controller import RuleController
from streaming.rules.detections import detected
from streaming.rules.evaluation import follow_rules
from streaming.rules.log import KafkaRuleLog
from streaming.rules.plans import SENDER, Run
from streaming.rules.program import Programs
from streaming.rules.references import References, relation
from streaming.rules.runs import Runs
from streaming.rules.signatures import Signatures, rules_client_config
from streaming.rules.table_metrics import TableMetrics
from streaming.settings import StreamingSettings
from streaming.sinks import ensure_undelivered, read_undelivered, undelivered_figures
from streaming.slots import QueryMode, router_mode, rules_mode, slots_advice
from streaming.sources import client_config
from streaming.spark import start_spark
from streaming.state import State
from streaming.supervision import QuerySupervisor
from streaming.tables import create_tables
from streaming.unread import Unread
from streaming.upkeep import Upkeep

_logger = logging.getLogger(__name__)

NAME: Final = "streaming"
LOG_TOPICS: Final = (
    *(INBOUND, ROUTES, SESSIONS, EVENTS),
    *(RULES, OUTPUTS, DEAD_LETTERS, METRICS),
)
_LOCK_TIMEOUT_SECONDS: Final = 30.0
_STOP_TIMEOUT_SECONDS: Final = 5.0


class _StoppedEarly(BaseException):
    """Told to stop while Spark starts: nothing runs yet that needs an orderly end."""


class _Stop:
    """What SIGTERM and SIGINT do: end the start-up at once, later ask the main loop to end."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.starting = True

    def __call__(self, _number: int, _frame: FrameType | None) -> None:
        self.asked.set()
        if self.starting:
            self.starting = False
            raise _StoppedEarly


def main(settings: StreamingSettings) -> int:
    """Run until SIGTERM or SIGINT; return the exit code.

    Raises:
        OperationalError: The machine or the settings do not allow it to run.
    """
    set_up_logging(settings.log_level, settings.log_file, settings.log_format, NAME)
    logging.getLogger("py4j").setLevel(logging.WARNING)
    stop = _Stop()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    beat = partial(_beat, settings)
    try:
        return _start_and_run(settings, stop, beat)
    except _StoppedEarly:
        return 0
    finally:
        beat(healthy=False, detail="stopped")


def _start_and_run(settings: StreamingSettings, stop: _Stop, beat: Callable[..., None]) -> int:
    beat(healthy=False, detail="starting Spark")
    # Before the JVM: it may be set while Spark starts.
    calendar = CalendarWatch(SystemClock())
    lock = hold(settings.data_dir / "checkpoints" / "lock", _LOCK_TIMEOUT_SECONDS)
    guard = PoisonGuard(settings.data_dir.absolute(), SystemClock())
    guard.find()
    spark, jvm = start_spark(settings, inherited_fds=(lock,))
    watch = partial(calendar.run, jvm.kill, stop.asked)
    threading.Thread(target=watch, name="calendar", daemon=True).start()
    try:
        guard.open(spark)
        if settings.master.startswith("local["):
            begin = partial(_begin_with_rules, spark, settings)
            threading.Thread(target=begin, name="rules-ahead", daemon=True).start()
        partitions = _await_log(spark, settings, beat)
        stop.starting = False
        code = _run(spark, jvm, settings, partitions, guard, stop.asked, beat)
    except _StoppedEarly:
        jvm.kill()
        guard.close()
        raise
    except BaseException:
        jvm.kill()
        raise
    jvm.stop(_STOP_TIMEOUT_SECONDS)
    if code == 0:
        guard.close()
    return code


def _run(
    spark: SparkSession,
    jvm: Jvm,
    settings: StreamingSettings,
    partitions: dict[str, int],
    guard: PoisonGuard,
    stopping: threading.Event,
    beat: Callable[..., None],
) -> int:
    clock = SystemClock()
    has_tables = threading.Event()
    mode = _mode(settings, partitions[INBOUND])
    tables_log = KafkaRuleLog(settings.log.servers, {}, is_controllers=False)
    checkpoints = settings.data_dir.absolute() / "checkpoints"
    skipped = Counter(pass_over_lost_end(checkpoints, tables_log.append, clock))
    tables = State(settings, state.checkpoint(settings), clock, wait=stopping.wait)
    controller = _controller(spark, settings, partitions, clock)
    memory = _runs(spark, settings, controller, clock)
    table_metrics = TableMetrics(tables_log.append, controller.is_known)
    rule_tables = outputs.Outputs(
        settings,
        clock,
        controller.table_actions,
        stopping.wait,
        table_metrics,
        controller.run_names,
    )
    log = LogAdmin(settings.log.servers)
    unread = Unread(log.begins, tables_log.append, clock)
    positions = {
        name: Positions(checkpoints / name, log_topics, log.begins, log.ends, clock)
        for name, log_topics in ((router.NAME, (INBOUND,)), (rules.NAME, rules.SOURCES))
    }

    def telling(
        name: str, start: Callable[..., StreamingQuery], *what: object
    ) -> Callable[[], StreamingQuery]:
        begin = partial(start, spark, settings, *what, skipped=skipped[name])
        return _telling(unread, name, settings, begin)

    queries = QuerySupervisor(
        clock,
        {
            router.NAME: partial(
                _start_router, spark, settings, positions[router.NAME], unread, mode
            ),
            rules.NAME: partial(
                _start_rules,
                *(spark, settings, positions[rules.NAME], unread),
                *(controller, _rules_mode(settings, mode, partitions)),
            ),
            history.NAME: telling(history.NAME, history.start),
            state.NAME: telling(state.NAME, state.start, tables),
            outputs.NAME: telling(outputs.NAME, outputs.start, rule_tables),
        },
        {
            rules.NAME: lambda: controller.first is not None,
            history.NAME: has_tables.is_set,
            state.NAME: has_tables.is_set,
            outputs.NAME: lambda: has_tables.is_set() and controller.has_rules,
        },
    )
    queries.check()  # messages flow while the tables are looked at, which takes seconds
    create_tables(spark, settings)
    has_tables.set()
    threading.Thread(target=controller.run, args=(stopping,), name="rules", daemon=True).start()
    references = References(spark, settings, tables_log, clock)
    threading.Thread(
        target=references.run, args=(stopping,), name="references", daemon=True
    ).start()
    remembering = threading.Thread(target=memory.run, args=(stopping,), name="runs", daemon=True)
    remembering.start()
    upkeep = Upkeep(spark, settings, tables, clock)
    # A daemon: what it does is ended with the JVM, and is done again another time.
    threading.Thread(target=upkeep.run, args=(stopping,), name="upkeep", daemon=True).start()
    retention = _log_retention(spark, settings, controller, tables, unread, clock)
    threading.Thread(
        target=retention.run, args=(stopping,), name="log-retention", daemon=True
    ).start()
    well = "routing" if mode.real_time else f"routing in micro-batches: {mode.reason}"
    measured = _figures(spark, settings, partitions, mode, queries, memory, clock)
    threading.Thread(target=measured.run, args=(stopping,), name="figures", daemon=True).start()
    figures: dict[str, Any] = {}
    routing = False

    def add_figures(families: Families) -> None:
        add_queries(families, measured, clock)
        add_actions(families, table_metrics.rules)

    registry = new_registry(NAME, lambda: routing, add_figures)
    metrics = MetricsServer(settings.metrics, registry)
    while not stopping.is_set():
        if jvm.process.poll() is not None:
            _logger.error("java ended", extra={"fields": {"exit_code": jvm.process.returncode}})
            return 1
        buried = guard.look(spark)
        guard.pause(buried, controller.pause_version)
        queries.check()
        with suppress(Py4JError):  # it is just ending: the next look at it says so
            done = read_done(spark)
            for name, noted in positions.items():
                noted.note(done.get(name, {}))
        trouble = queries.trouble()
        routing = not trouble and (routing or queries.is_processing(router.NAME))
        figures = {"java_pid": jvm.process.pid, "queries": measured.latest}
        figures["rules_with_memory"] = memory.figures()
        figures |= measured.heap.figures | retention_figures(retention)
        waiting = undelivered_figures(measured.undelivered, clock.now_ms())
        figures["undelivered"] = waiting
        figures["refused_activations"] = controller.refused
        detail = trouble or (well if routing else "starting the queries")
        if waiting:
            records = sum(one["records"] for one in waiting.values())
            detail += f"; {records} records wait for brokers that are away: bin/mqlake doctor"
        if buried:
            detail += f"; passes over {len(buried)} messages that ended it: bin/mqlake poison list"
        beat(healthy=routing, detail=detail, figures=figures)
        stopping.wait(INTERVAL_SECONDS if routing else INTERVAL_SECONDS / 5)
    beat(healthy=False, detail="stopping", figures=figures)
    # A batch that is refused from here on is no error to report, as py4j would.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    tables.close(_STOP_TIMEOUT_SECONDS)
    queries.stop()
    remembering.join(_STOP_TIMEOUT_SECONDS)
    metrics.close()
    return 0


def _begin_with_rules(spark: SparkSession, settings: StreamingSettings) -> None:
    """Let rules be compiled while the rest starts: hundreds of them take seconds."""
    # The log may not be there yet, or Spark is being stopped: then they are compiled later.
    with suppress(LogError, Py4JError):
        if RULES in partition_counts(spark, client_config(settings), (RULES,)):
            follow_rules(spark, rules_client_config(settings))


def _await_log(
    spark: SparkSession, settings: StreamingSettings, beat: Callable[..., None]
) -> dict[str, int]:
    """Wait until the log has its topics; return how many partitions each has."""
    while True:
        try:
            counts = partition_counts(spark, client_config(settings), LOG_TOPICS)
        except LogError as error:
            detail = str(error)
        else:
            missing = [log_topic for log_topic in LOG_TOPICS if log_topic not in counts]
            if not missing:
                return counts
            detail = f"waiting for log topics: {', '.join(missing)}"
        beat(healthy=False, detail=detail)
        time.sleep(INTERVAL_SECONDS / 2)


def _mode(settings: StreamingSettings, partitions: int) -> QueryMode:
    mode = router_mode(settings, partitions)
    if not mode.real_time and settings.router_trigger == "real-time":
        advice = slots_advice(settings, partitions)
        _logger.warning(
            "the router runs in micro-batches",
            extra={"fields": {"reason": mode.reason, "advice": advice}},
        )
    return mode


def _controller(
    spark: SparkSession, settings: StreamingSettings, partitions: dict[str, int], clock: Clock
) -> RuleController:
    sources = {log_topic: partitions[log_topic] for log_topic in rules.SOURCES}
    return RuleController(
        KafkaRuleLog(
            settings.log.servers, sources, is_controllers=True, signatures=Signatures.of(settings)
        ),
        Programs(spark),
        settings,
        clock,
        partial(settled, rules.checkpoint(settings)),
        partial(stateful.is_ended, settings),
    )


def _runs(
    spark: SparkSession, settings: StreamingSettings, controller: RuleController, clock: Clock
) -> Runs:
    def start(run: Run, interval_seconds: float) -> StreamingQuery:
        def reference(session: SparkSession, name: str) -> DataFrame:
            return relation(session, settings, run.tenant, name)

        ensure_undelivered(settings, SENDER)
        return stateful.start(spark, settings, run, reference, detected, interval_seconds)

    return Runs(
        clock,
        lambda: controller.runs,
        start,
        stateful.Checkpoints(settings),
        controller.pause,
        settings.stateful_interval_seconds,
    )


def _figures(
    spark: SparkSession,
    settings: StreamingSettings,
    partitions: dict[str, int],
    mode: QueryMode,
    queries: QuerySupervisor,
    memory: Runs,
    clock: Clock,
) -> QueryFigures:
    modes = {router.NAME: mode, rules.NAME: _rules_mode(settings, mode, partitions)}
    real_time = frozenset(name for name, one in modes.items() if one.real_time)
    folder = settings.data_dir.absolute() / "checkpoints"

    def watched() -> list[Watched]:
        return [
            *queries.watched(folder, real_time),
            *memory.watched(stateful.checkpoints(settings)),
        ]

    admin = LogAdmin(settings.log.servers)
    return QueryFigures(
        clock,
        watched,
        admin.ends,
        partial(read_positions, spark),
        partial(read_heap, spark),
        partial(read_undelivered, spark),
    )


def _rules_mode(
    settings: StreamingSettings, router: QueryMode, partitions: dict[str, int]
) -> QueryMode:
    more = sum(partitions[log_topic] for log_topic in rules.SOURCES if log_topic != INBOUND)
    return rules_mode(settings, router, partitions[INBOUND], more)


def _log_retention(
    spark: SparkSession,
    settings: StreamingSettings,
    controller: RuleController,
    tables: State,
    unread: Unread,
    clock: Clock,
) -> LogRetention:
    servers = settings.log.servers
    readers = Readers(
        settings,
        controller,
        lambda: tables.next_offsets,
        partial(read_positions, spark),
        RunnerPlaces(LastRecord(servers, RUNNER, CHECKPOINT_KEY)),
        FederationPlaces(LastRecord(servers, FEDERATION, FEDERATION_KEY)),
    )
    retention: dict[str, Retention] = {}
    if settings.log_retention_hours is not None:
        messages = Retention(
            round(settings.log_retention_hours * 3_600_000), settings.log_retention_bytes
        )
        week = Retention(KEPT_A_WEEK_MS, KEPT_A_WEEK_BYTES)
        retention = {INBOUND: messages, OUTPUTS: messages, EVENTS: week, DEAD_LETTERS: week}
    return LogRetention(LogAdmin(servers), retention, readers, unread, clock, settings.log_dir)


def _telling(
    unread: Unread, name: str, settings: StreamingSettings, start: Callable[[], StreamingQuery]
) -> Callable[[], StreamingQuery]:
    """Tell first what a query will pass over, for it does so by itself."""

    def tell_and_start() -> StreamingQuery:
        unread.look(name, committed(settings.data_dir.absolute() / "checkpoints" / name))
        return start()

    return tell_and_start


def _start_router(
    spark: SparkSession,
    settings: StreamingSettings,
    positions: Positions,
    unread: Unread,
    mode: QueryMode,
) -> StreamingQuery:
    done = positions.look()
    first = positions.begin(unread.look(router.NAME, done) or done)
    return router.start(spark, settings, first, real_time=mode.real_time)


def _start_rules(
    spark: SparkSession,
    settings: StreamingSettings,
    positions: Positions,
    unread: Unread,
    controller: RuleController,
    mode: QueryMode,
) -> StreamingQuery:
    begun = controller.begun
    assert begun is not None, "the query is started when the rules are known"
    # Nothing before the first version is wanted, so nothing of that is read, or missed.
    needed = later(controller.first or {}, positions.look() or {})
    first = unread.look(rules.NAME, needed) or needed
    positions.begin(first)
    return rules.start(spark, settings, first, begun, real_time=mode.real_time)


def _beat(
    settings: StreamingSettings,
    *,
    healthy: bool,
    detail: str,
    figures: dict[str, Any] | None = None,
) -> None:
    if settings.heartbeat_file is None:
        return
    try:
        settings.heartbeat_file.parent.mkdir(parents=True, exist_ok=True)
        write_heartbeat(
            settings.heartbeat_file, NAME, healthy=healthy, detail=detail, figures=figures
        )
    except OSError as error:
        # A full disk, say: that the heartbeat grows old says enough; routing goes on.
        _logger.warning("heartbeat not written", extra={"fields": {"reason": str(error)}})
