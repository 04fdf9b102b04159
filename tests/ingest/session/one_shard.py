"""One shard whose owner's acts are performed at once: for tests of single rules."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from ingest.session.ownership import Shard
from ingest.session.shard.effects import (
    AppendRecords,
    Effect,
    EndOffsets,
    Fenced,
    Find,
    NextOffsets,
    PublishWills,
    Tell,
)
from ingest.session.shard.memory_shards import MemoryShardStore
from mqlake.errors import LogError
from mqlake.records.messages import LogRecord
from mqlake.records.sessions import (
    NEVER_EXPIRES,
    SessionRecord,
    StoredWill,
    encode_session,
    session_key,
    session_members,
)
from mqlake.records.shards import (
    ANYBODY,
    OWNER_KEY,
    Run,
    claim_key,
    encode_claim,
    encode_run,
    stamp_headers,
)

if TYPE_CHECKING:
    from ingest.session.shard.effects import Work
    from mqlake.records.versions import Headers

ME: Final = Run("g1", "i1")
OTHER: Final = Run("g2", "i2")
KEY: Final = ("t", "c")


class OneShard:
    """A shard with its log.

    Attributes:
        told: What gateways were told: (gateway, action, members).
        wills: Exchanges of the wills that were published.
        held_back: Coroutines that are not run, while `is_slow`.
        fails: The log does not answer an effect of this kind.
    """

    def __init__(self) -> None:
        self.log: list[LogRecord] = []
        self.told: list[tuple[str, str, dict[str, Any]]] = []
        self.wills: list[bytes] = []
        self.is_slow = False
        self.held_back: list[Work] = []
        self.fails: type[Effect[Any]] | None = None
        self._works: list[Work] = []
        self.shard = Shard(0, MemoryShardStore(), ME, self._start)
        self.own(ME)

    def append(self, key: bytes, value: bytes | None, headers: Headers) -> int:
        """Append a record and let the shard read it; then its owner acts."""
        offset = self._append(key, value, headers)
        self.act()
        return offset

    def own(self, run: Run) -> int:
        return self.append(OWNER_KEY, encode_run(run), stamp_headers(run.incarnation))

    def claim(
        self,
        run: Run,
        number: int = 1,
        epoch: int | None = None,
        principal: str | None = ANYBODY,
        *,
        clean_start: bool = False,
        session: SessionRecord | None = None,
    ) -> int:
        said = None if session is None else session_members(session)
        value = encode_claim(
            run, number, clean_start=clean_start, principal=principal, session=said
        )
        return self.append(claim_key(*KEY), value, stamp_headers(run.incarnation, epoch))

    def goes_on(self, run: Run, number: int) -> int:
        """Claim a session that was begun without a claim."""
        value = encode_claim(run, number, clean_start=True, goes_on=True)
        return self.append(claim_key(*KEY), value, stamp_headers(run.incarnation))

    def end_claim(self, run: Run, epoch: int, owner: int | None = None) -> int:
        stamp = stamp_headers(run.incarnation, epoch, owner)
        return self.append(claim_key(*KEY), None, stamp)

    def write(self, session: SessionRecord | None, epoch: int, owner: int | None = None) -> int:
        value = None if session is None else encode_session(session)
        return self.append(session_key(*KEY), value, stamp_headers("i", epoch, owner))

    def act(self) -> None:
        """Perform what was begun to its end."""
        while self._works:
            if self.is_slow:
                self.held_back += self._works
                self._works = []
                return
            self._run(self._works.pop(0))

    def resume(self) -> None:
        """Perform what was held back."""
        self.is_slow = False
        self._works, self.held_back = self.held_back + self._works, []
        self.act()

    def fence(self) -> None:
        """Throw `Fenced` into what was held back."""
        self.is_slow = False
        for work in self.held_back:
            work.send(None)
            with suppress(Fenced):
                work.throw(Fenced("not the owner"))
        self.held_back = []
        self.act()

    def told_actions(self) -> list[tuple[str, str]]:
        return [(gateway, action) for gateway, action, _ in self.told]

    def _start(self, _shard: Shard, work: Work) -> None:
        self._works.append(work)

    def _append(self, key: bytes, value: bytes | None, headers: Headers) -> int:
        offset = len(self.log)
        self.log.append(LogRecord(0, offset, 1_000 + offset, key, value, headers))
        self.shard.apply(self.log[-1])
        return offset

    def _run(self, work: Work) -> None:
        result: Any = None
        while True:
            try:
                effect = work.send(result)
            except StopIteration:
                return
            if self.fails is not None and isinstance(effect, self.fails):
                with suppress(LogError):
                    work.throw(LogError("the log does not answer", definite=False))
                return
            result = self._perform(effect)

    def _perform(self, effect: Effect[Any]) -> Any:
        if isinstance(effect, AppendRecords):
            for record in effect.records:
                self._append(record.key, record.value, record.headers)
        elif isinstance(effect, Tell):
            self.told.append((effect.gateway, effect.action, json.loads(effect.value)))
        elif isinstance(effect, PublishWills):
            self.wills += [exchange for _, exchange in effect.wills]
        elif isinstance(effect, (NextOffsets, EndOffsets)):
            return [0]
        elif isinstance(effect, Find):
            return {one.exchange for one in effect.searches if one.exchange in self.wills}
        return None


def a_session(run: Run = OTHER, *, connected: bool = True, **changes: Any) -> SessionRecord:
    session = SessionRecord(
        session_id="s1",
        tenant=KEY[0],
        client_id=KEY[1],
        protocol_level=5,
        username=None,
        keep_alive=0,
        clean_start=False,
        session_expiry_interval=NEVER_EXPIRES,
        gateway=run.gateway,
        incarnation=run.incarnation,
        connected=connected,
        connected_at_ms=10,
        disconnected_at_ms=None if connected else 20,
    )
    for name, value in changes.items():
        setattr(session, name, value)
    return session


def a_will(delay: int = 0) -> StoredWill:
    return StoredWill("w", b"", 0, retain=False, will_delay_interval=delay)
