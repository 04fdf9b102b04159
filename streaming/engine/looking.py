"""Threads of router and lake that look after something until they are stopped."""

import logging
import threading
from collections.abc import Callable

from mqlake.errors import LogError


def look_again(
    look: Callable[[], object],
    seconds: float,
    stopping: threading.Event,
    logger: logging.Logger,
    failure: str,
) -> None:
    """Look every few seconds until `stopping` is set; a failure is reported, and tried again.

    Args:
        look: Done each time.
        seconds: Before each.
        stopping: Set when it is to end. Then it ends quietly: the other side may be gone.
        logger: Logger of the caller.
        failure: Log line for a log that does not answer, or another failure.
    """
    while not stopping.wait(seconds):
        try:
            look()
        except LogError as error:
            logger.warning(failure, extra={"fields": {"reason": str(error)}})
        except Exception:
            if stopping.is_set():
                break
            logger.exception(failure)
