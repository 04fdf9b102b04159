"""Counters of the tables of rules, in `mqlake.metrics` like those of other actions."""

import logging
from collections.abc import Callable
from typing import Final
from uuid import uuid4

from mqlake.errors import LogError
from rules.actions.contract import NewRecord
from rules.metrics import RuleMetrics

logger = logging.getLogger(__name__)

PROCESS: Final = "tables"


class TableMetrics:
    """Counters of the actions `table` of this run of the application.

    Args:
        append: Appends records to `mqlake.metrics` and waits until they are safe.
        is_known: Tells whether there is a rule, by tenant and identifier.
    """

    def __init__(
        self,
        append: Callable[[list[NewRecord]], None],
        is_known: Callable[[tuple[str, str]], bool],
    ) -> None:
        self._append = append
        self._is_known = is_known
        self._unsent: dict[bytes | None, NewRecord] = {}
        self.rules = RuleMetrics(PROCESS, uuid4().hex[:8])

    def write(self) -> None:
        """Append changed counters; when the log is away, the next time."""
        for name in self.rules.rules():
            if not self._is_known(name):
                self.rules.forget(*name)
        self._unsent |= {record.key: record for record in self.rules.changed()}
        if not self._unsent:
            return
        try:
            self._append([*self._unsent.values()])
        except LogError as error:
            logger.warning(
                "metrics of tables not written", extra={"fields": {"reason": str(error)}}
            )
        else:
            self._unsent.clear()
