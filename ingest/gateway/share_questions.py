"""Asks which parts of share groups are still this gateway's.

One that has not heard itself for so long that it may have been taken for dead gives nothing out
until the owners of its groups have answered for each part: others may have what it held.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from ingest.gateway.share_log import ShareLog
    from ingest.gateway.share_part import SharePart
    from ingest.gateway.share_saving import PartSaver
    from ingest.session.share_parts import GroupKey

ASK_AGAIN_SECONDS: Final = 1.0
"""After so long without an answer a part asks again."""


class ShareQuestions:
    """The questions of one gateway.

    Args:
        log: Where parts are written.
        parts: Of this gateway.
        saver: Writes them.
        start: Runs a coroutine as a task that has an owner.
        on_kept: Told of each part when all are kept.

    Attributes:
        is_asking: Nothing is given out.
    """

    def __init__(
        self,
        log: ShareLog,
        parts: Mapping[GroupKey, SharePart],
        saver: PartSaver,
        start: Callable[[Coroutine[Any, Any, None]], object],
        on_kept: Callable[[SharePart], None],
    ) -> None:
        self._log = log
        self._parts = parts
        self._saver = saver
        self._start = start
        self._on_kept = on_kept
        self._number = 0
        self.is_asking = False

    def ask(self, *, is_running: bool) -> None:
        """Give nothing out until it is known which parts are still this gateway's.

        Args:
            is_running: Whether parts can be there at all.
        """
        self._log.ask()
        self._number += 1
        if not is_running:
            self.look()
            return
        is_asking = self.is_asking
        self.is_asking = True
        for part in self._parts.values():
            part.is_open = False
            # Of one that was never written nobody has settled anything.
            part.asks = self._number if part.is_written else 0
        if not is_asking:
            self._start(self._ask_all())
        self.look()

    async def _ask_all(self) -> None:
        while self.is_asking:
            for part in list(self._parts.values()):
                if part.asks:
                    self._saver.save(part)
            await asyncio.sleep(ASK_AGAIN_SECONDS)

    def look(self) -> None:
        """Go on when all parts that were asked for are kept."""
        if not self._log.is_asking or any(part.asks for part in self._parts.values()):
            return
        if not self._log.is_answer_good():
            return  # it is asked again
        self.is_asking = self._log.is_asking = False
        self._log.confirmed()
        for part in list(self._parts.values()):
            self._on_kept(part)

    def kept(self, part: SharePart, number: int) -> None:
        """Take the answer for a part."""
        if part.asks and part.asks == number:
            part.asks = 0
            part.touch()
            self.look()
