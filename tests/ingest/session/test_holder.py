from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ingest.session.holder import Holder
from ingest.session.holder_host import Refusal
from mqlake.errors import InvalidRecord, LogError
from mqlake.records.shards import Key, Run, claim_key, read_stamp

if TYPE_CHECKING:
    from collections.abc import Callable

    from ingest.session.holder_host import Grant
    from mqlake.records.versions import Headers

ME, KEY = Run("g1", "i1"), ("t", "c")


class Host:
    """Writes down what a holder decides; appends stand where they come."""

    def __init__(self) -> None:
        self.did: list[tuple[Any, ...]] = []
        self.appended: list[tuple[bytes, bytes | None, Headers]] = []

    def append(
        self,
        shard: int,
        key: bytes,
        value: bytes | None,
        headers: Headers,
        on_appended: Callable[[int, LogError | None], None],
    ) -> None:
        self.appended.append((key, value, headers))
        on_appended(len(self.appended) - 1, None)

    def begin(self, key: Key, opening: str, grant: Grant | None) -> None:
        self.did.append(("begin", opening))

    def refuse(self, key: Key, opening: str, refusal: Refusal, reason: str) -> None:
        self.did.append(("cut" if refusal is Refusal.UNCERTAIN else "refuse", opening))

    def let_go(self, key: Key) -> None:
        self.did.append(("let go",))

    def rewrite(self, key: Key) -> None:
        self.did.append(("rewrite",))

    def rewrite_subscription(self, key: Key, topic_filter: str) -> None:
        self.did.append(("rewrite", topic_filter))

    def abandon(self, key: Key) -> None:
        self.did.append(("abandon",))

    def untake(self, key: Key) -> None:
        self.did.append(("untake",))

    def confirmed(self) -> None:
        self.did.append(("confirmed",))


def told(number: int, epoch: int = 0) -> dict[str, Any]:
    return {
        "tenant": KEY[0],
        "client_id": KEY[1],
        "incarnation": ME.incarnation,
        "number": number,
        "epoch": epoch,
    }


def test_a_grant_from_before_the_gateway_was_cut_off_counts_no_more() -> None:
    host = Host()
    holder: Holder[str] = Holder(ME, 1, host)
    holder.open(KEY, "client", 0.0, clean_start=False, principal=None)
    holder.confirm(20.0)
    holder.granted(told(1, 0))
    assert not holder.is_held(KEY)
    holder.granted(told(2, 2))
    assert host.did == [("confirmed",), ("begin", "client")]


def test_who_waits_by_a_full_claim_is_turned_away_when_its_gateway_was_cut_off() -> None:
    host = Host()
    holder: Holder[str] = Holder(ME, 1, host)
    session = {"id": "s1"}
    holder.open(KEY, "client", 0.0, clean_start=False, principal=None, session=session)
    holder.confirm(20.0)
    holder.granted(told(1, 0))
    assert host.did == [("cut", "client"), ("confirmed",)]
    assert not holder.is_held(KEY)
    assert [value for _, value, _ in host.appended[1:]] == [None, None]


class Silent(Host):
    """Appends of claims fail, in one way or the other."""

    def __init__(self, error: LogError) -> None:
        super().__init__()
        self.error = error

    def append(
        self,
        shard: int,
        key: bytes,
        value: bytes | None,
        headers: Headers,
        on_appended: Callable[[int, LogError | None], None],
    ) -> None:
        on_appended(-1, self.error)


@pytest.mark.parametrize("session", [None, {"id": "s1"}])
@pytest.mark.parametrize("is_definite", [True, False])
def test_no_is_said_only_when_the_claim_cannot_be_granted(
    session: dict[str, Any] | None, is_definite: bool
) -> None:
    host = Silent(LogError("the log is away", definite=is_definite))
    holder: Holder[str] = Holder(ME, 1, host)
    holder.open(KEY, "client", 0.0, clean_start=False, principal=None, session=session)
    assert host.did == [("refuse" if is_definite or session is None else "cut", "client")]


@pytest.mark.parametrize(
    ("turn_away", "is_certain"),
    [
        (lambda holder: holder.tick(20.0, 15.0), False),
        (lambda holder: holder.asked_to_let_go(told(1)), False),
        (lambda holder: holder.refused(told(1)), False),
        (lambda holder: holder.refused({**told(1), "is_anothers": True}), True),
    ],
)
def test_who_waits_by_a_full_claim_is_told_no_only_if_it_is_void(
    turn_away: Callable[[Holder[str]], None], is_certain: bool
) -> None:
    host = Host()
    holder: Holder[str] = Holder(ME, 1, host)
    session = {"id": "s1"}
    holder.open(KEY, "client", 0.0, clean_start=False, principal=None, session=session)
    turn_away(holder)
    assert host.did == [("refuse" if is_certain else "cut", "client")]


def test_who_waits_is_turned_away_by_the_next_connection_of_its_client() -> None:
    host = Host()
    holder: Holder[str] = Holder(ME, 1, host)
    for opening, session in (("one", None), ("two", {"id": "s1"}), ("three", None)):
        holder.open(KEY, opening, 0.0, clean_start=False, principal=None, session=session)
    assert host.did == [("refuse", "one"), ("cut", "two")]


def test_a_free_session_may_be_refused_when_it_is_claimed() -> None:
    host = Host()
    holder: Holder[str] = Holder(ME, 1, host)
    number = holder.next_number
    holder.open_free(KEY, "client")
    holder.refused(told(number))
    assert host.did == [("begin", "client"), ("abandon",), ("untake",)]
    assert not holder.is_held(KEY)


def test_a_refusal_that_is_late_does_not_take_what_was_granted_since() -> None:
    host = Host()
    holder: Holder[str] = Holder(ME, 1, host)
    holder.open(KEY, "client", 0.0, clean_start=False, principal="ann")
    holder.granted(told(1, 0))
    holder.refused({**told(1), "is_anothers": True})
    assert host.did == [("begin", "client")]
    assert holder.epoch(KEY) == 0


def test_a_grant_takes_the_place_of_a_free_session() -> None:
    host = Host()
    holder: Holder[str] = Holder(ME, 1, host)
    holder.open_free(KEY, "one")
    holder.open(KEY, "two", 0.0, clean_start=True, principal=None)
    holder.granted(told(2, 1))
    assert host.did == [("begin", "one"), ("abandon",), ("untake",), ("begin", "two")]
    assert holder.epoch(KEY) == 1


def test_of_a_free_session_nothing_is_written() -> None:
    host = Host()
    holder: Holder[str] = Holder(ME, 1, host)
    holder.open_free(KEY, "client")
    holder.release(KEY, lambda epoch: holder.end_claim_of(KEY, epoch))
    assert host.did == [("begin", "client"), ("untake",)]
    assert host.appended == []


def test_a_free_session_that_was_claimed_is_released_under_its_epoch() -> None:
    host = Host()
    holder: Holder[str] = Holder(ME, 1, host)
    number = holder.next_number
    holder.open_free(KEY, "client")
    holder.claimed(KEY, number, 7)
    epochs: list[int] = []
    holder.release(KEY, epochs.append)
    assert epochs == [7]


def test_the_claim_of_a_free_session_that_is_over_ends() -> None:
    host = Host()
    holder: Holder[str] = Holder(ME, 1, host)
    number = holder.next_number
    holder.open_free(KEY, "client")
    holder.release(KEY, lambda epoch: None)
    holder.claimed(KEY, number, 7)
    assert [(key, value) for key, value, _ in host.appended] == [(claim_key(*KEY), None)]


def ends(host: Host) -> list[int]:
    """Return the epochs of the claims that were ended."""
    return [
        epoch
        for key, value, headers in host.appended
        if key == claim_key(*KEY) and value is None
        if (epoch := read_stamp(headers).epoch) is not None
    ]


def held(host: Host) -> Holder[str]:
    holder: Holder[str] = Holder(ME, 1, host)
    holder.open(KEY, "client", 0.0, clean_start=False, principal=None)
    holder.granted(told(1, 0))
    return holder


def test_the_end_of_a_claim_waits_for_others() -> None:
    host = Host()
    holder = held(host)
    holder.saved(KEY, 0)
    assert ends(host) == []
    holder.tick(1.0, 15.0)
    holder.tick(2.0, 15.0)
    assert ends(host) == [0]


def test_the_end_of_a_claim_goes_before_the_last_record() -> None:
    host = Host()
    holder = held(host)
    holder.saved(KEY, 0)
    holder.release(KEY, lambda epoch: host.did.append(("last", epoch, ends(host))))
    assert ("last", 0, [0]) in host.did
    holder.tick(1.0, 15.0)
    assert ends(host) == [0]


def test_a_new_claim_takes_the_place_of_one_that_is_over() -> None:
    host = Host()
    holder = held(host)
    holder.release(KEY, lambda epoch: None)
    holder.saved(KEY, 0)
    holder.open(KEY, "again", 1.0, clean_start=False, principal=None)
    holder.tick(1.0, 15.0)
    assert ends(host) == []


@pytest.mark.parametrize("is_granted", [False, True])
def test_a_record_that_is_late_does_not_end_the_claim_behind_it(is_granted: bool) -> None:
    """The first connection was cut before the log had told of its session."""
    host = Host()
    holder = held(host)
    holder.release(KEY, lambda epoch: None)
    holder.open(KEY, "again", 0.0, clean_start=False, principal=None)
    if is_granted:
        holder.granted(told(2, 1))
    holder.saved(KEY, 0)
    holder.tick(1.0, 15.0)
    assert ends(host) == [0]


def test_what_others_have_settled_leaves_no_claim() -> None:
    host = Host()
    holder = held(host)
    holder.saved(KEY, 0)
    holder.confirm(20.0)
    answer = {"incarnation": ME.incarnation, "number": 1, "shard": 0, "keys": [], "is_last": True}
    holder.answered(answer)
    assert ("abandon",) in host.did
    assert ends(host) == [0]


def page(number: int, *topic_filters: str) -> dict[str, Any]:
    return {**told(number), "subscriptions": [{"filter": one} for one in topic_filters]}


def test_a_session_begins_when_all_pages_of_its_subscriptions_have_come() -> None:
    host = Host()
    holder: Holder[str] = Holder(ME, 1, host)
    holder.open(KEY, "client", 0.0, clean_start=False, principal=None)
    holder.subscriptions_told(page(7, "of", "another", "claim"))
    holder.subscriptions_told(page(1, "a", "b"))
    holder.granted({**told(1), "subscriptions": 3})
    assert host.did == []  # the claim is repeated, and all of it comes again
    holder.subscriptions_told(page(1, "a", "b"))
    holder.subscriptions_told(page(1, "c"))
    holder.granted({**told(1), "subscriptions": 3})
    assert host.did == [("begin", "client")]
    holder.subscriptions_told(page(1, "late"))
    holder.asked_to_rewrite({**told(1), "filter": "a"})
    assert host.did[1:] == [("rewrite", "a")]


@pytest.mark.parametrize("rows", [None, "a", [1], [{}], [{"filter": 1}]])
def test_a_malformed_page_is_refused(rows: object) -> None:
    holder: Holder[str] = Holder(ME, 1, Host())
    holder.open(KEY, "client", 0.0, clean_start=False, principal=None)
    with pytest.raises(InvalidRecord, match="subscriptions"):
        holder.subscriptions_told({**told(1), "subscriptions": rows})


def test_a_session_that_is_lost_is_let_go_of_without_a_record() -> None:
    host = Host()
    holder: Holder[str] = Holder(ME, 1, host)
    holder.open(KEY, "client", 0.0, clean_start=False, principal=None)
    holder.granted(told(1, 0))
    written = len(host.appended)
    holder.lost(told(1, 7))  # one that was held before
    assert holder.is_held(KEY)
    holder.lost(told(1, 0))
    assert not holder.is_held(KEY)
    assert host.did[1:] == [("abandon",), ("untake",)]
    assert len(host.appended) == written
    holder.lost(told(1, 0))  # told again
    assert host.did[1:] == [("abandon",), ("untake",)]
    with pytest.raises(InvalidRecord):
        holder.lost({"tenant": "t"})
