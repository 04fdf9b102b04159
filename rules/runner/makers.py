"""Actions act with the rights of their rule's maker, as they are when a row is sent."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from mqlake.clock import Clock
from mqlake.errors import InvalidRecord, LogError
from mqlake.log.admin import LogAdmin
from mqlake.records.messages import ACCESS, LogRecord
from rules.actions.contract import Action, ActionAround, ActionError, Failure, Problems, Work
from rules.makers import MakerRights, Makers, may_publish, why_not
from rules.model import ActionSpec

logger = logging.getLogger(__name__)

ANSWER_SECONDS: Final = 10.0
"""How long reading the log's keys and accounts may take, for a maker not known yet."""


class KnownMakers:
    """Rights of makers of rules as `mqlake.access` has them, kept up to date by `apply`.

    Args:
        admin: Asks the log how far it goes.
        clock: Says which keys have expired.
    """

    def __init__(self, admin: LogAdmin, clock: Clock) -> None:
        self._admin = admin
        self._clock = clock
        self._makers = Makers()
        self._missing: set[str] = set()
        self._asking = asyncio.Lock()
        self._changed = asyncio.Event()
        self.next_offset = 0

    def apply(self, records: list[LogRecord]) -> None:
        """Take records of `mqlake.access`, in order."""
        for record in records:
            try:
                maker = self._makers.apply(record.key or b"", record.value)
                self._missing.discard(maker or "")
            except InvalidRecord as exc:
                fields = {"offset": record.offset, "reason": str(exc)}
                logger.warning("record of rights not understood", extra={"fields": fields})
            self.next_offset = record.offset + 1
        self._changed.set()

    def rights(self, maker: str | None) -> MakerRights | None:
        """Return the present rights of a maker, as far as they have been read."""
        return self._makers.rights(maker, self._clock.now_ms())

    async def find(self, maker: str | None) -> MakerRights | None:
        """Return the rights of a maker; for an unknown one read the log to its end first.

        A call while another one waits is answered after it: rows go out in order.

        Raises:
            ActionError: The log does not answer.
        """
        if self._is_settled(maker):
            return self.rights(maker)
        async with self._asking:
            if not self._is_settled(maker):
                await self._read_on()
                if maker is not None:
                    self._missing.add(maker)
        return self.rights(maker)

    async def wait_until(self, offset: int) -> None:
        """Wait until all before an offset is applied."""
        while self.next_offset < offset:
            self._changed.clear()
            await self._changed.wait()

    def _is_settled(self, maker: str | None) -> bool:
        return maker in self._missing or self.rights(maker) is not None

    async def _read_on(self) -> None:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                ends = await asyncio.to_thread(self._admin.ends, ACCESS)
                await self.wait_until(ends[0])
        except (LogError, TimeoutError) as exc:
            problem = "it is not known now whether the rule's maker still has rights"
            raise ActionError(f"{problem}: {exc}", Failure.UNAVAILABLE) from exc


class MakersAction(ActionAround):
    """Runs another action, as long as the maker of its rule may.

    Args:
        action: The other one.
        spec: Its definition.
        tenant: Tenant of the rule.
        maker: Maker of the version.
        makers: Know his rights.
    """

    def __init__(
        self, action: Action, spec: ActionSpec, tenant: str, maker: str, makers: KnownMakers
    ) -> None:
        super().__init__(action)
        self._spec = spec
        self._tenant = tenant
        self._maker = maker
        self._makers = makers

    async def run(self, batch: Sequence[Work]) -> Problems:
        # Without a wait when he is known, so that batches stay in order.
        rights = await self._makers.find(self._maker)
        # The engine checks what the rule reads: it evaluates nothing that may not be read.
        why = why_not(rights, self._tenant, (), (), (self._spec,))
        if why is not None:
            raise ActionError(f"the rule was made by {self._maker}, who {why}")
        return await self._action.run(batch)


def publishing_rights(makers: KnownMakers, maker: str | None, topic_name: str) -> bool:
    """Tell whether a maker may publish to a topic now."""
    rights = makers.rights(maker)
    return rights is not None and may_publish(rights, topic_name)
