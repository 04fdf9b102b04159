"""Writes dead letters of outputs that actions have given up, and the events that tell of it."""

import asyncio
import logging
from dataclasses import replace
from typing import Final

from mqlake.records.messages import DEAD_LETTERS
from mqlake.records.outputs import DeadLetter, dead_letter_headers, rule_record_key
from rules.actions.contract import LogTarget, NewRecord, Work
from rules.runner.failures import FailureEvents

logger = logging.getLogger(__name__)

MAX_ERROR_CHARACTERS: Final = 2_000
RETRY_SECONDS: Final = 1.0


class DeadLetters:
    """Appends to `mqlake.dead_letters`.

    Args:
        target: Appends to the log.
        failures: Makes the events.
    """

    def __init__(self, target: LogTarget, failures: FailureEvents) -> None:
        self._target = target
        self._failures = failures

    async def append(self, work: Work, function: str, error: str) -> None:
        """Write the dead letter of an output; return when the log has it.

        A letter that the log never takes, because it is too large, goes without the row.
        """
        output = work.output
        letter = DeadLetter(
            tenant=output.tenant,
            rule=output.rule,
            version=output.version,
            value=output.row,
            position=output.position,
            stage="action",
            error=error[:MAX_ERROR_CHARACTERS],
            topic_name=output.topic_name,
            client_id=output.client_id,
            action=f"{work.action}/{function}",
        )
        event = self._failures.make(output, letter)
        records = [_record(letter)] if event is None else [_record(letter), event]
        while problem := (await self._target.append(records)).get(0):
            logger.error("dead letter not written", extra={"fields": {"reason": str(problem)}})
            if problem.of_batch and letter.value:
                left_out = f"; the row of {len(letter.value)} bytes is left out: {problem}"
                letter = replace(letter, value=b"", error=letter.error + left_out)
            else:
                await asyncio.sleep(RETRY_SECONDS)
            records = [_record(letter)]


def _record(letter: DeadLetter) -> NewRecord:
    key = rule_record_key(letter.tenant, letter.rule)
    return NewRecord(DEAD_LETTERS, key, letter.value, dead_letter_headers(letter))
