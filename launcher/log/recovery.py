"""Make the embedded log fit to go on after an end that was not in order.

See `mqlake.log.lost_end` for the reason. Kafka itself finds torn segments, so it runs once
alone, which takes some seconds; then offsets are skipped.
"""

import logging
import time
from pathlib import Path

from launcher.child import Child, ChildProgram
from launcher.log.kafka import LOOK_SECONDS, START_TIMEOUT_SECONDS, KafkaServer
from launcher.progress import StartProgress
from mqlake.errors import OperationalError
from mqlake.log.lost_end import ended_in_order, note_gaps, skip_offsets

_logger = logging.getLogger(__name__)


def recover_log(
    kafka: KafkaServer, program: ChildProgram, checkpoints: Path, progress: StartProgress
) -> None:
    """Let the log go on behind all offsets that it may have given; nothing if it ended in order.

    Args:
        kafka: Prepared.
        program: Runs it.
        checkpoints: The folder where router and lake find out.
        progress: Reports steps that take long.

    Raises:
        OperationalError: The log does not start, or cannot be read or written.
    """
    if ended_in_order(kafka.log_dir):
        return
    progress.part("log", "did not end in order, checking what is left")
    progress.tick()
    _run_once(kafka, program)
    try:
        gaps = skip_offsets(kafka.log_dir)
        note_gaps(checkpoints, gaps)
    except (OSError, ValueError) as exc:
        raise OperationalError(f"the log's end could not be mended: {exc}") from exc
    ends = {f"{gap.log_topic}-{gap.partition}": gap.first for gap in gaps}
    _logger.warning("the log did not end in order", extra={"fields": {"ended_at": ends}})


def _run_once(kafka: KafkaServer, program: ChildProgram) -> None:
    child = Child(program)
    try:
        kafka.await_serving(child.exit_reason, time.monotonic() + START_TIMEOUT_SECONDS)
        child.terminate()
        deadline = time.monotonic() + program.stop_timeout_seconds
        while child.exit_reason() is None and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)
    finally:
        child.kill_group()
    if not ended_in_order(kafka.log_dir):
        raise OperationalError(f"the log does not end in order: see {program.log}")
