"""The Spark application's main: session, tables, queries, then watch until told to stop."""

import logging
import re
import signal
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from pyspark.sql import SparkSession

from mqlake.clock import SystemClock
from mqlake.errors import LogError, OperationalError
from mqlake.heartbeat import INTERVAL_SECONDS, write_heartbeat
from mqlake.logs import set_up_logging
from mqlake.records import INBOUND, ROUTES
from streaming.exclusive import hold
from streaming.jobs import history, router
from streaming.jvm.process import Jvm
from streaming.log_topics import partition_counts
from streaming.settings import StreamingSettings
from streaming.sources import client_config
from streaming.spark import start_spark
from streaming.supervision import QuerySupervisor
from streaming.tables import create_tables

_logger = logging.getLogger(__name__)

NAME: Final = "streaming"
_LOCK_TIMEOUT_SECONDS: Final = 30.0
_STOP_TIMEOUT_SECONDS: Final = 5.0
_FIGURES_EVERY: Final = 5
"""Heartbeats from one reading of the queries' figures to the next; reading costs a little."""
SPARE_SLOTS: Final = 1
"""Task slots beside those the router keeps; the other queries and SQL take turns on them."""


def main(settings: StreamingSettings) -> int:
    """Run until SIGTERM or SIGINT; return the exit code.

    Raises:
        OperationalError: The machine or the settings do not allow it to run.
    """
    set_up_logging(settings.log_level, settings.log_file)
    logging.getLogger("py4j").setLevel(logging.WARNING)
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    beat = partial(_beat, settings)
    beat(healthy=False, detail="starting Spark")
    lock = hold(settings.data_dir / "checkpoints" / "lock", _LOCK_TIMEOUT_SECONDS)
    spark, jvm = start_spark(settings, inherited_fds=(lock,))
    try:
        create_tables(spark, settings)
        if not _await_log(spark, settings, stopping, beat):
            return 0
        return _run(spark, jvm, settings, stopping, beat)
    finally:
        jvm.stop(_STOP_TIMEOUT_SECONDS)
        beat(healthy=False, detail="stopped")


def _run(
    spark: SparkSession,
    jvm: Jvm,
    settings: StreamingSettings,
    stopping: threading.Event,
    beat: Callable[..., None],
) -> int:
    queries = QuerySupervisor(
        SystemClock(),
        {
            router.NAME: partial(router.start, spark, settings),
            history.NAME: partial(history.start, spark, settings),
        },
    )
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
        detail = trouble or ("routing" if routing else "starting the queries")
        beat(healthy=routing, detail=detail, figures=figures)
        stopping.wait(INTERVAL_SECONDS if routing else INTERVAL_SECONDS / 5)
    beat(healthy=False, detail="stopping", figures=figures)
    queries.stop()
    return 0


def _await_log(
    spark: SparkSession,
    settings: StreamingSettings,
    stopping: threading.Event,
    beat: Callable[..., None],
) -> bool:
    """Wait until the log has its topics; False when told to stop before."""
    while not stopping.is_set():
        try:
            counts = partition_counts(spark, client_config(settings), (INBOUND, ROUTES))
        except LogError as error:
            detail = str(error)
        else:
            if len(counts) == 2:
                _check_slots(settings.master, counts[INBOUND])
                return True
            detail = f"waiting for log topics {INBOUND} and {ROUTES}"
        beat(healthy=False, detail=detail)
        stopping.wait(INTERVAL_SECONDS / 2)
    return False


def _check_slots(master: str, partitions: int) -> None:
    """Refuse a master on which the router would leave no slot to the rest.

    Raises:
        OperationalError: Too few threads.
    """
    if match := re.fullmatch(r"local\[(\d+)(?:,\d+)?\]", master):
        slots = int(match[1])
    elif match := re.fullmatch(r"local-cluster\[(\d+),(\d+),\d+\]", master):
        slots = int(match[1]) * int(match[2])
    else:
        return
    needed = partitions + SPARE_SLOTS
    if slots < needed:
        raise OperationalError(
            f"Spark master {master} has {slots} task slots, expected at least {needed}: "
            f"one for each of the {partitions} partitions of {INBOUND} and {SPARE_SLOTS} spare"
        )


def _beat(
    settings: StreamingSettings,
    *,
    healthy: bool,
    detail: str,
    figures: dict[str, Any] | None = None,
) -> None:
    if settings.heartbeat_file is not None:
        settings.heartbeat_file.parent.mkdir(parents=True, exist_ok=True)
        write_heartbeat(
            settings.heartbeat_file, NAME, healthy=healthy, detail=detail, figures=figures
        )
