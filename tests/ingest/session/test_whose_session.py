"""Whose a session is, as its shard sees it: single rules of `session.shard.stored_sessions`."""

import pytest

from mqlake.errors import InvalidRecord
from mqlake.records.shards import ANYBODY, Key, Run, claim_key, read_stamp, stamp_headers
from tests.ingest.session.one_shard import KEY, OTHER, OneShard, a_session

THIRD = Run("g3", "i3")


class Free:
    """Remembers who was asked to let go."""

    def __init__(self) -> None:
        self.asked: list[Key] = []

    def let_go(self, key: Key) -> None:
        self.asked.append(key)

    def claimed(self, key: Key, number: int, epoch: int) -> None: ...


def test_a_claim_of_another_principal_is_void_and_its_record_goes() -> None:
    one = OneShard()
    epoch = one.claim(OTHER, principal="ann")
    one.write(a_session(principal="ann"), epoch)
    one.end_claim(OTHER, epoch)
    void = one.claim(THIRD, principal="mallory")
    assert one.told[-1][:2] == ("g3", "refuse")
    assert one.told[-1][2]["is_anothers"]
    assert ("g2", "release") not in one.told_actions()
    last = one.log[-1]
    assert (last.key, last.value) == (claim_key(*KEY), None)
    assert read_stamp(last.headers).epoch == void


@pytest.mark.parametrize("principal", ["ann", ANYBODY])
def test_a_claim_of_its_principal_or_of_an_earlier_version_is_served(principal: str) -> None:
    one = OneShard()
    epoch = one.claim(OTHER, principal="ann")
    one.write(a_session(principal="ann"), epoch)
    one.claim(THIRD, principal=principal)
    assert one.told_actions()[-1] == ("g2", "release")


def test_a_session_that_nobody_has_logged_in_for_is_anybodys() -> None:
    one = OneShard()
    epoch = one.claim(OTHER, principal=None)
    one.write(a_session(), epoch)
    one.claim(THIRD, principal="ann")
    assert one.told_actions()[-1] == ("g2", "release")


def test_what_was_begun_without_a_claim_is_not_ended_for_another() -> None:
    one = OneShard()
    free = Free()
    one.shard.taken.free = free
    assert one.shard.take(KEY, 1, "ann")
    void = one.claim(THIRD, principal="mallory")
    assert free.asked == []
    assert one.told_actions()[-1] == ("g3", "refuse")
    assert read_stamp(one.log[-1].headers)[1:] == (void, one.shard.owner_epoch)
    one.claim(OTHER, principal="ann")
    assert free.asked == [KEY]


def test_a_principal_that_is_no_text_is_not_a_claim() -> None:
    one = OneShard()
    value = b'{"v":1,"gateway":"g","incarnation":"i","number":1,"principal":7}'
    with pytest.raises(InvalidRecord, match="principal is 7, expected text or null"):
        one.append(claim_key(*KEY), value, stamp_headers("i"))
