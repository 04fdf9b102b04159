"""Tells when the tables have the outputs of a rule: until then its versions stay known.

The lake looks up in the activation of a version which tables its rows go to. It may be away for
longer than the router remembers versions, so the router asks where it is.
"""

import logging
from collections.abc import Callable
from pathlib import Path

from mqlake.errors import LogError
from mqlake.records.messages import DEAD_LETTERS, OUTPUTS
from mqlake.records.rule_facts import RuleKey
from streaming.log.checkpoints import Offsets, committed

_logger = logging.getLogger(__name__)

Versions = tuple[RuleKey, int]
"""Versions of a rule up to a change."""


class TakenOutputs:
    """Remembers where the outputs ended when it was asked first of some versions.

    Args:
        ends: Returns the offset that the next record of each partition of a log topic gets.
        folder: Folder of the query that takes outputs.
    """

    def __init__(self, ends: Callable[[str], dict[int, int]], folder: Path) -> None:
        self._ends = ends
        self._folder = folder
        self._made: dict[Versions, Offsets] = {}

    def __call__(self, versions: Versions) -> bool:
        """Tell whether all is taken that versions had made when this was asked first of them."""
        if versions not in self._made:
            try:
                ends = {log_topic: self._ends(log_topic) for log_topic in (OUTPUTS, DEAD_LETTERS)}
                self._made[versions] = ends
            except LogError as error:
                _logger.warning("outputs not found", extra={"fields": {"reason": str(error)}})
                return False
        done = committed(self._folder) or {}
        is_taken = all(
            done.get(log_topic, {}).get(partition, 0) >= end
            for log_topic, partitions in self._made[versions].items()
            for partition, end in partitions.items()
        )
        if is_taken:
            del self._made[versions]
        return is_taken
