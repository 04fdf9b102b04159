"""Has the engine pass over records on which it has died, and their rules paused."""

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from mqlake.clock import Clock
from mqlake.errors import OperationalError
from streaming.application.poison_file import (
    DEATHS_TO_SKIP,
    PLACES_FILE,
    Poison,
    PoisonEntry,
    forget_places,
)
from streaming.jvm.bridge import java_class

_CLASS: Final = "mqlake.rules.Places"
_logger = logging.getLogger(__name__)

Pause = Callable[[tuple[str, str], int, str], None]
"""Asks for a rule (tenant, identifier) to be paused, if that version is in force, and says why."""


class PoisonGuard:
    """Knows which records rules skip, in Python and in Java.

    Args:
        data_dir: Data directory of the system.
        folder: Folder of the engine that is to start.
        clock: When a death is found.
    """

    def __init__(self, data_dir: Path, folder: Path, clock: Clock) -> None:
        self._poison = Poison(data_dir)
        self._places = folder / PLACES_FILE
        self._clock = clock
        self._known: frozenset[str] = frozenset()
        self._problem = ""

    def find(self, ended: Iterable[Path] = ()) -> None:
        """Find the records on which earlier engines died; before the next one starts.

        Args:
            ended: Folders of others that do not run.
        """
        files = [self._places, *(folder / PLACES_FILE for folder in ended)]
        now_ms = self._clock.now_ms()
        try:
            deaths = [entry for one in files for entry in self._poison.take_deaths(one, now_ms)]
        except OperationalError as error:
            self._tell(str(error))
            return
        for entry in deaths:
            fields = {"place": str(entry.place), "deaths": entry.deaths, "skipped": entry.skipped}
            _logger.error("the engine has died evaluating a rule", extra={"fields": fields})

    def open(self, spark: SparkSession) -> None:
        """Let the engine note its places, and skip those that are known for it."""
        java = java_class(spark, _CLASS)
        java.open(str(self._places))
        self.look(spark)

    def look(self, spark: SparkSession) -> list[PoisonEntry]:
        """Take up an operator's changes; return the entries that are skipped."""
        try:
            skipped = self._poison.skipped()
        except OperationalError as error:
            self._tell(str(error))
            return []
        places = frozenset(str(entry.place) for entry in skipped)
        if places != self._known:
            java = java_class(spark, _CLASS)
            if not self._known <= places:
                java.forget()
            for place in places:
                java.skip(place)
            self._known = places
        return skipped

    def pause(self, skipped: list[PoisonEntry], pause: Pause) -> None:
        """Ask for the rules to be paused, again and again; not for an operator's entries.

        One that is asked for before the rules are known, or while it changes, may stay in force.
        """
        for entry in skipped:
            if entry.deaths >= DEATHS_TO_SKIP:
                place = entry.place
                pause(
                    (place.tenant, place.rule),
                    entry.version,
                    f"paused: the engine ended {entry.deaths} times while it evaluated the rule on "
                    f"the message at {place.record}, which is passed over now; a change of the "
                    "rule starts it again",
                )

    def _tell(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            _logger.error("poison is not known", extra={"fields": {"reason": problem}})

    def close(self) -> None:
        """The engine has ended as it should."""
        forget_places(self._places)
