"""The sessions that one gateway holds, or has asked for: its side of `ingest.session.ownership`.

    open ──► claiming ──grant──► held ──let go──► (released: the host writes where it stands)
                │                 │ ▲
                └─ refused,       │ └─ claimed, when its shard changes its owner
                   given up       │
    open_free ──► free ───────────┘
                                  └─ lost: others have settled it while this gateway was cut off,
                                     as they say when it asks, or when it writes of the session

A *free* session is one that this gateway has begun as owner of its shard, without a claim: nothing
of it is in the log, and nothing is to be written when it ends.

Nothing here reads the log or waits: its answers come in, decisions go to the host. A claim is
repeated until it is answered, so nothing depends on a single answer.

After this gateway was cut off for as long as its lease, others may have settled its sessions. It
asks the owner of each shard which it still holds, and lets go of the rest without a record: none of
it would count.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from ingest.session.control_members import key_of, keys_of, number_of
from ingest.session.holder_host import REASONS, Grant, Refusal
from mqlake.errors import InvalidRecord
from mqlake.records.shards import (
    Key,
    Run,
    claim_key,
    encode_claim,
    encode_run,
    question_key,
    shard_of,
    stamp_headers,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from ingest.session.holder_host import HolderHost
    from mqlake.errors import LogError

REPEAT_SECONDS: Final = 1.0
"""After so long without an answer a claim, or a question, is asked again."""

Opening = TypeVar("Opening")


@dataclass(slots=True)
class _Claiming(Generic[Opening]):
    opening: Opening
    number: int
    clean_start: bool
    principal: str | None
    """As in the claim."""
    session: dict[str, Any] | None
    """As in the claim."""
    since: float
    repeat_at: float
    epoch: int | None = None
    """Offset of the claim; None until the log has reported it."""
    subscriptions: dict[str, Any] = field(default_factory=dict)
    """Topic filter -> subscription, of those with records of their own that have come."""


@dataclass(slots=True)
class _Held:
    number: int
    epoch: int | None
    """None: it is free."""
    is_granted: bool = False


@dataclass(slots=True)
class _Question:
    """To the owner of one shard: which sessions do we still hold?"""

    number: int
    asked: set[Key]
    repeat_at: float
    confirmed: set[Key] = field(default_factory=set)


class Holder(Generic[Opening]):
    """Claims sessions and lets go of them.

    Args:
        me: This run of this gateway.
        shards: How many there are.
        host: Carries out decisions.
    """

    def __init__(self, me: Run, shards: int, host: HolderHost[Opening]) -> None:
        self._me = me
        self._shards = shards
        self._host = host
        self._claims = 0
        # One of each principal: another user does not come before one that waits.
        self._claiming: dict[Key, list[_Claiming[Opening]]] = {}
        self._held: dict[Key, _Held] = {}
        # Claims that are of no use any more, by their epochs: their ends are written together.
        self._useless: dict[Key, int] = {}
        self._questions: dict[int, _Question] = {}
        self._asked = 0

    def __len__(self) -> int:
        """Return for how many sessions clients wait."""
        return len(self._claiming)

    @property
    def is_confirming(self) -> bool:
        return bool(self._questions)

    def epoch(self, key: Key) -> int | None:
        """Return the epoch of a held session; None of one that is free."""
        held = self._held.get(key)
        return None if held is None else held.epoch

    # A client comes

    def open(
        self,
        key: Key,
        opening: Opening,
        now: float,
        *,
        clean_start: bool,
        principal: str | None,
        session: dict[str, Any] | None = None,
    ) -> None:
        """Claim the session of a client; an opening that waits for it already is turned away."""
        earlier = self._waiting(key, principal)
        self.give_up(key, principal)
        if earlier is not None and earlier.opening is not opening:
            self._turn_away(key, earlier, Refusal.TAKEN_OVER, "taken over by its client id")
        self._useless.pop(key, None)  # the new claim replaces the old one
        self._claims += 1
        repeat_at = now + REPEAT_SECONDS
        claiming = _Claiming(opening, self._claims, clean_start, principal, session, now, repeat_at)
        self._claiming.setdefault(key, []).append(claiming)
        self._append_claim(key, claiming)

    @property
    def next_number(self) -> int:
        """Return the number of the next claim: with it the owner of a shard takes a session."""
        return self._claims + 1

    def open_free(self, key: Key, opening: Opening) -> None:
        """Begin a session that this gateway, the owner of its shard, has taken (`Shard.take`)."""
        self._claims += 1
        self._held[key] = _Held(self._claims, None)
        self._host.begin(key, opening, None)

    def claimed(self, key: Key, number: int, epoch: int) -> None:
        """Note that a free session is claimed: its shard has another owner."""
        held = self._held.get(key)
        if held is not None and held.number == number:
            held.epoch = epoch
        else:
            self._end_claim(key, epoch)

    def give_up(self, key: Key, principal: str | None) -> None:
        """Forget the opening that waits as this principal, and the claim: its client has gone."""
        claiming = self._waiting(key, principal)
        if claiming is not None:
            self._conclude(key, claiming)
            if claiming.epoch is not None:
                self._end_claim(key, claiming.epoch)

    def waits(self, key: Key, principal: str | None) -> Opening | None:
        """Return the opening that waits for a session here as this principal."""
        claiming = self._waiting(key, principal)
        return None if claiming is None else claiming.opening

    def _waiting(self, key: Key, principal: str | None) -> _Claiming[Opening] | None:
        found = (one for one in self._claiming.get(key, ()) if one.principal == principal)
        return next(found, None)

    def _numbered(self, key: Key, number: int) -> _Claiming[Opening] | None:
        return next((one for one in self._claiming.get(key, ()) if one.number == number), None)

    def _conclude(self, key: Key, claiming: _Claiming[Opening]) -> None:
        """Note that one waits no more."""
        self._claiming[key].remove(claiming)
        if not self._claiming[key]:
            del self._claiming[key]

    def granted(self, value: dict[str, Any]) -> None:
        """Take a session that was given to this gateway.

        Raises:
            InvalidRecord: A member is missing.
        """
        key, number, epoch = key_of(value), number_of(value, "number"), number_of(value, "epoch")
        if value.get("incarnation") != self._me.incarnation:
            return
        held = self._held.get(key)
        if held is not None and held.number == number:
            held.epoch, held.is_granted = epoch, True
            self._host.untake(key)
            return
        claiming = self._numbered(key, number)
        if claiming is None:
            self._end_claim(key, epoch)
            return
        if len(claiming.subscriptions) != value.get("subscriptions", 0):
            return  # some were lost on the way: the claim is repeated
        self._conclude(key, claiming)
        if held is not None:
            self._drop(key, held)  # it was free, and the log has given the session on
        self._held[key] = _Held(number, epoch, is_granted=True)
        rows = list(claiming.subscriptions.values())
        is_full = claiming.session is not None
        grant = Grant(value.get("session"), value.get("progress"), rows, is_full)
        self._host.begin(key, claiming.opening, grant)

    def subscriptions_told(self, value: dict[str, Any]) -> None:
        """Take a page of the subscriptions of a session that is about to be given.

        While a session is given it does not change: a page that comes again says the same.

        Raises:
            InvalidRecord: A member is missing.
        """
        key, number = key_of(value), number_of(value, "number")
        claiming = self._numbered(key, number)
        if value.get("incarnation") != self._me.incarnation or claiming is None:
            return
        rows = value.get("subscriptions")
        if type(rows) is not list:
            raise InvalidRecord("member 'subscriptions' is missing, expected a list")
        for row in rows:
            if type(row) is not dict or type(row.get("filter")) is not str:
                raise InvalidRecord("member 'subscriptions' is malformed, expected subscriptions")
            claiming.subscriptions[row["filter"]] = row

    def refused(self, value: dict[str, Any]) -> None:
        """Take a refusal: the session has a later claim, or is another user's.

        Raises:
            InvalidRecord: A member is missing.
        """
        key, number = key_of(value), number_of(value, "number")
        if value.get("incarnation") != self._me.incarnation:
            return
        held, claiming = self._held.get(key), self._numbered(key, number)
        if held is not None and held.number == number:
            if held.is_granted and value.get("is_anothers"):
                return  # the other user has gone, and the claim was repeated since
            self._drop(key, held)  # it was free, and its claim came too late
            if held.epoch is not None:
                self._end_claim(key, held.epoch)
        elif claiming is not None:
            self._conclude(key, claiming)
            refusal = Refusal.ANOTHERS if value.get("is_anothers") else Refusal.TAKEN_OVER
            self._turn_away(key, claiming, refusal, REASONS[refusal])

    # A session goes

    def asked_to_let_go(self, value: dict[str, Any]) -> None:
        """Let go of a session for which another claim waits.

        Raises:
            InvalidRecord: A member is missing.
        """
        key, epoch = key_of(value), number_of(value, "epoch")
        held = self._held.get(key)
        if held is not None and held.epoch in {epoch, None}:
            held.epoch = epoch
            self._host.let_go(key)
            return
        claimed = (one for one in self._claiming.get(key, ()) if one.epoch == epoch)
        claiming = next(claimed, None)
        if claiming is not None:
            self._conclude(key, claiming)
            refusal = Refusal.TAKEN_OVER
            self._turn_away(key, claiming, refusal, REASONS[refusal])
        self._end_claim(key, epoch)

    def lost(self, value: dict[str, Any]) -> None:
        """Let go of a session without a record: the log has it not as this gateway's any more.

        Raises:
            InvalidRecord: A member is missing.
        """
        key, epoch = key_of(value), number_of(value, "epoch")
        held = self._held.get(key)
        if held is not None and held.epoch == epoch:
            self._drop(key, held)

    def asked_to_rewrite(self, value: dict[str, Any]) -> None:
        """Write a session once more, or a subscription: its last record does not count.

        Raises:
            InvalidRecord: A member is missing.
        """
        key = key_of(value)
        held = self._held.get(key)
        if held is not None and held.epoch == number_of(value, "epoch"):
            topic_filter = value.get("filter")
            if topic_filter is None:
                self._host.rewrite(key)
            else:
                self._host.rewrite_subscription(key, str(topic_filter))

    def is_held(self, key: Key) -> bool:
        return key in self._held

    def saved(self, key: Key, epoch: int) -> None:
        """Note that the log has a record of a session: the claim by which it was held is of no use.

        Its end is not urgent: it goes with the last record of the session, or with other ends.
        """
        held = self._held.get(key)
        if key in self._claiming or (held is not None and held.epoch != epoch):
            self._end_claim(key, epoch)  # its client has claimed the session again
        else:
            self._useless[key] = epoch

    def release(self, key: Key, write: Callable[[int], None]) -> None:
        """Let go of a session: `write` it under its epoch, unless it is free."""
        held = self._held.pop(key, None)
        if held is None:
            return
        self._end_useless(key)
        if held.epoch is not None:
            write(held.epoch)
        self._host.untake(key)

    def end_claim_of(self, key: Key, epoch: int) -> None:
        """Say that a session of which nothing is written is over."""
        self._end_claim(key, epoch)

    # Time passes, and the log is silent

    def tick(self, now: float, open_seconds: float) -> None:
        """Repeat unanswered claims; refuse clients that have waited too long; end claims."""
        self.end_claims()
        for key, claiming in self._all_claiming():
            if now - claiming.since > open_seconds:
                self.give_up(key, claiming.principal)
                reason = "the session is held by another gateway that does not answer"
                self._turn_away(key, claiming, Refusal.NOT_GIVEN, reason)
            elif now >= claiming.repeat_at and claiming.epoch is not None:
                claiming.repeat_at = now + REPEAT_SECONDS
                self._append_claim(key, claiming)
        for shard, question in self._questions.items():
            if now >= question.repeat_at:
                self._ask(shard, question, now)

    def end_claims(self) -> None:
        """End those that are of no use any more."""
        for key in list(self._useless):
            self._end_useless(key)

    def confirm(self, now: float) -> None:
        """Find out which sessions are still held; `confirmed` is called when that is known.

        Claims are made again: a grant that comes now may be of a claim that was settled.
        A full claim was settled as if its client had been here; that one is turned away.
        """
        for key, claiming in self._all_claiming():
            if claiming.session is not None:
                self.give_up(key, claiming.principal)
                reason = "this gateway was not heard of while the client waited"
                self._turn_away(key, claiming, Refusal.NOT_GIVEN, reason)
                continue
            self.open(
                key,
                claiming.opening,
                now,
                clean_start=claiming.clean_start,
                principal=claiming.principal,
            )
        by_shard: dict[int, set[Key]] = {}
        for key in self._held:
            by_shard.setdefault(shard_of(*key, self._shards), set()).add(key)
        self._questions.clear()
        for shard, keys in by_shard.items():
            self._asked += 1
            question = _Question(self._asked, keys, 0.0)
            self._questions[shard] = question
            self._ask(shard, question, now)
        if not self._questions:
            self._host.confirmed()

    def answered(self, value: dict[str, Any]) -> None:
        """Take a shard owner's answer about the sessions that this gateway holds.

        Raises:
            InvalidRecord: A member is missing.
        """
        shard = number_of(value, "shard")
        question = self._questions.get(shard)
        if (
            question is None
            or question.number != number_of(value, "number")
            or value.get("incarnation") != self._me.incarnation
        ):
            return
        question.confirmed.update(keys_of(value))
        if not value.get("is_last"):
            return
        del self._questions[shard]
        for key in question.asked - question.confirmed:
            held = self._held.get(key)
            if held is not None:
                self._drop(key, held)
        if not self._questions:
            self._host.confirmed()

    def _ask(self, shard: int, question: _Question, now: float) -> None:
        question.repeat_at = now + REPEAT_SECONDS
        question.confirmed.clear()
        key, value = question_key(self._me.gateway), encode_run(self._me, question.number)
        self._host.append(shard, key, value, stamp_headers(self._me.incarnation), _ignore)

    def _drop(self, key: Key, held: _Held) -> None:
        """Note that the log has taken a session from this gateway."""
        del self._held[key]
        self._end_useless(key)
        self._host.abandon(key)
        self._host.untake(key)

    def _turn_away(
        self,
        key: Key,
        claiming: _Claiming[Opening],
        refusal: Refusal,
        reason: str,
        *,
        is_certain: bool = False,
    ) -> None:
        """Have a client turned away; refuse it only if its claim was, or is, certainly not granted.

        One that is not full was certainly not settled as if the client had been here.
        """
        if claiming.session is not None and refusal is not Refusal.ANOTHERS and not is_certain:
            refusal = Refusal.UNCERTAIN
        self._host.refuse(key, claiming.opening, refusal, reason)

    # Claims

    def _all_claiming(self) -> list[tuple[Key, _Claiming[Opening]]]:
        return [(key, one) for key, claiming in self._claiming.items() for one in claiming]

    def _append_claim(self, key: Key, claiming: _Claiming[Opening]) -> None:
        value = encode_claim(
            self._me,
            claiming.number,
            clean_start=claiming.clean_start,
            principal=claiming.principal,
            session=claiming.session,
        )
        headers = stamp_headers(self._me.incarnation, claiming.epoch)

        def appended(offset: int, error: LogError | None) -> None:
            if error is not None:
                self._claim_failed(key, claiming, error)
                return
            if claiming.epoch is None:
                claiming.epoch = offset
            if self._numbered(key, claiming.number) is not claiming:
                current = self._held.get(key)
                if current is None or current.number != claiming.number:
                    self._end_claim(key, claiming.epoch)  # given up meanwhile

        self._host.append(self._shard(key), claim_key(*key), value, headers, appended)

    def _claim_failed(self, key: Key, claiming: _Claiming[Opening], error: LogError) -> None:
        if self._numbered(key, claiming.number) is claiming and claiming.epoch is None:
            self._conclude(key, claiming)
            is_certain = error.definite
            self._turn_away(key, claiming, Refusal.NOT_GIVEN, str(error), is_certain=is_certain)

    def _end_useless(self, key: Key) -> None:
        epoch = self._useless.pop(key, None)
        if epoch is not None:
            self._end_claim(key, epoch)

    def _end_claim(self, key: Key, epoch: int) -> None:
        headers = stamp_headers(self._me.incarnation, epoch)
        self._host.append(self._shard(key), claim_key(*key), None, headers, _ignore)

    def _shard(self, key: Key) -> int:
        return shard_of(*key, self._shards)


def _ignore(_offset: int, _error: LogError | None) -> None:
    pass
