"""The Spark application's main: session, tables, queries, then watch until told to stop."""

import logging
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from mqlake.clock import Clock, SystemClock
from mqlake.errors import LogError
from mqlake.heartbeat import INTERVAL_SECONDS, write_heartbeat
from mqlake.logs import set_up_logging
from mqlake.records import (
    DEAD_LETTERS,
    EVENTS,
    INBOUND,
    METRICS,
    OUTPUTS,
    ROUTES,
    RULES,
    SESSIONS,
)
from streaming.exclusive import hold
from streaming.jobs import history, outputs, router, rules, state
from streaming.jvm.process import Jvm
from streaming.log_topics import partition_counts
from streaming.rules.controller import RuleController
from streaming.rules.log import KafkaRuleLog
from streaming.rules.program import Programs
from streaming.settings import StreamingSettings
from streaming.slots import QueryMode, router_mode, rules_mode, slots_advice
from streaming.sources import client_config
from streaming.spark import start_spark
from streaming.state import State
from streaming.supervision import QuerySupervisor
from streaming.tables import create_tables
from streaming.upkeep import Upkeep

_logger = logging.getLogger(__name__)

NAME: Final = "streaming"
LOG_TOPICS: Final = (
    *(INBOUND, ROUTES, SESSIONS, EVENTS),
    *(RULES, OUTPUTS, DEAD_LETTERS, METRICS),
)
_LOCK_TIMEOUT_SECONDS: Final = 30.0
_STOP_TIMEOUT_SECONDS: Final = 5.0
_FIGURES_EVERY: Final = 5
"""Heartbeats from one reading of the queries' figures to the next; reading costs a little."""


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
    set_up_logging(settings.log_level, settings.log_file)
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
    lock = hold(settings.data_dir / "checkpoints" / "lock", _LOCK_TIMEOUT_SECONDS)
    spark, jvm = start_spark(settings, inherited_fds=(lock,))
    try:
        create_tables(spark, settings)
        partitions = _await_log(spark, settings, beat)
        stop.starting = False
        code = _run(spark, jvm, settings, partitions, stop.asked, beat)
    except BaseException:
        jvm.kill()
        raise
    jvm.stop(_STOP_TIMEOUT_SECONDS)
    return code


def _run(
    spark: SparkSession,
    jvm: Jvm,
    settings: StreamingSettings,
    partitions: dict[str, int],
    stopping: threading.Event,
    beat: Callable[..., None],
) -> int:
    clock = SystemClock()
    mode = _mode(settings, partitions[INBOUND])
    tables = State(settings, state.checkpoint(settings), clock, rest=stopping.wait)
    controller = _controller(spark, settings, partitions, clock)
    rule_tables = outputs.Outputs(settings, clock, controller.table_actions, stopping.wait)
    queries = QuerySupervisor(
        clock,
        {
            router.NAME: partial(router.start, spark, settings, real_time=mode.real_time),
            rules.NAME: partial(_start_rules, spark, settings, controller, mode, partitions),
            history.NAME: partial(history.start, spark, settings),
            state.NAME: partial(state.start, spark, settings, tables),
            outputs.NAME: partial(outputs.start, spark, settings, rule_tables),
        },
        {
            rules.NAME: lambda: controller.first is not None,
            outputs.NAME: lambda: controller.has_rules,
        },
    )
    threading.Thread(target=controller.run, args=(stopping,), name="rules", daemon=True).start()
    upkeep = Upkeep(spark, settings, tables, clock)
    # A daemon: what it does is ended with the JVM, and is done again another time.
    threading.Thread(target=upkeep.run, args=(stopping,), name="upkeep", daemon=True).start()
    well = "routing" if mode.real_time else f"routing in micro-batches: {mode.reason}"
    figures: dict[str, Any] = {}
    rounds = 0
    routing = False
    while not stopping.is_set():
        if jvm.process.poll() is not None:
            _logger.error("java ended", extra={"fields": {"exit_code": jvm.process.returncode}})
            return 1
        queries.check()
        trouble = queries.trouble()
        routing = not trouble and (routing or queries.is_processing(router.NAME))
        if rounds % _FIGURES_EVERY == 0:
            figures = {"java_pid": jvm.process.pid, "queries": queries.figures()}
        rounds += 1
        detail = trouble or (well if routing else "starting the queries")
        beat(healthy=routing, detail=detail, figures=figures)
        stopping.wait(INTERVAL_SECONDS if routing else INTERVAL_SECONDS / 5)
    beat(healthy=False, detail="stopping", figures=figures)
    # A batch that is refused from here on is no error to report, as py4j would.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    tables.close(_STOP_TIMEOUT_SECONDS)
    queries.stop()
    return 0


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
        KafkaRuleLog(settings.log.bootstrap_servers, sources),
        Programs(spark),
        settings,
        clock,
        partial(rules.committed, rules.checkpoint(settings)),
    )


def _start_rules(
    spark: SparkSession,
    settings: StreamingSettings,
    controller: RuleController,
    router: QueryMode,
    partitions: dict[str, int],
) -> StreamingQuery:
    more = sum(partitions[log_topic] for log_topic in rules.SOURCES if log_topic != INBOUND)
    mode = rules_mode(settings, router, partitions[INBOUND], more)
    return rules.start(spark, settings, controller.first or {}, real_time=mode.real_time)


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
