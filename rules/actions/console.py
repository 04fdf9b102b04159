"""`console`: one line in the log of the process, for trying things out.

At most once: after the process was killed, lines that it may have written are not written again.
"""

import logging
from collections.abc import Sequence
from typing import Final

from pydantic import Field

from rules.actions.contract import (
    NO_PROBLEMS,
    NO_RETRY,
    ActionFunction,
    ActionServices,
    Arguments,
    Problems,
    Work,
)

MAX_ROW_CHARACTERS: Final = 2_000

logger = logging.getLogger(__name__)


class ConsoleArgs(Arguments):
    """Arguments of `console`."""

    max_characters: int = Field(
        default=MAX_ROW_CHARACTERS, ge=1, le=16_384, description="of the row; the rest is left out"
    )


def make(args: ConsoleArgs, _services: ActionServices) -> "Console":
    return Console(args)


class Console:
    """Writes lines."""

    max_batch = 100
    concurrency = 1
    may_fall_behind = False
    runs_recovered = False
    retry = NO_RETRY

    def __init__(self, args: ConsoleArgs) -> None:
        self._max_characters = args.max_characters

    async def run(self, batch: Sequence[Work]) -> Problems:
        for work in batch:
            text = work.output.row[: self._max_characters * 4].decode(errors="replace")
            if len(text) > self._max_characters:
                text = text[: self._max_characters] + "…"
            fields = {"rule": work.output.rule, "topic": work.output.topic_name, "row": text}
            logger.info("rule output", extra={"fields": fields})
        return NO_PROBLEMS

    async def close(self) -> None:
        pass


FUNCTION: Final = ActionFunction(
    "console", ConsoleArgs, make, "writes a line into the process's log"
)
