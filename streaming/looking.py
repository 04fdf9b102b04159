"""Threads of router and lake that look after something until they are told to stop."""

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
    """Look every so many seconds until told to stop; failures are told, and tried again.

    Args:
        look: Done each time.
        seconds: Before each.
        stopping: Set when it is to end. Then it ends quietly: the other side may be gone.
        logger: Of the caller.
        failure: Told when the log does not answer, or something else goes wrong.
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
