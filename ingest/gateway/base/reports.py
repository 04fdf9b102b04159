"""Reports of the log that count only if this gateway still held the sessions that it wrote of."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Reports:
    """Runs them in their order, or parks them while nobody knows whether the records count.

    Args:
        count: Tells whether it is known that they do.
    """

    def __init__(self, count: Callable[[], bool]) -> None:
        self._count = count
        self._parked: list[Callable[[], None]] = []

    def run(self, report: Callable[[], None]) -> None:
        """Run a report, now or once it counts."""
        if self._count():
            report()
        else:
            self._parked.append(report)

    def confirmed(self) -> None:
        """Go on with parked ones: sessions still held were held all the time."""
        parked, self._parked = self._parked, []
        for report in parked:
            self.run(report)
