"""Numbers of messages for share groups: what a site remembers of them has a bound, and loses none.

One side hands numbers over and takes some of them back; the other one has them, or gives them back.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.federation.envelope import ChainKey, SiteMessage
from ingest.federation.prefixes import Prefixes
from ingest.federation.settings import FederationSettings
from ingest.federation.sites import handing as module
from ingest.federation.sites.handing import Handing
from ingest.federation.sites.streams.inlet import Inlet, InletVerdict
from ingest.federation.sites.streams.log_messages import Carried, GroupOrigin, to_publish
from ingest.federation.sites.streams.streams import StreamKey, Streams
from ingest.protocol.packets import Publish
from mqlake.records.messages import HEADER_CLIENT_ID, HEADER_ID, HEADER_ORIGIN

GROUP = "$share/g/f/#"
HERE, NEIGHBOUR = 1, 2
MOST, WINDOW = 3, 2


@pytest.fixture(autouse=True)
def _few_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_GAPS", MOST)


class Side:
    """One site that takes messages for groups, or takes them back, as its log has them at once."""

    def __init__(self) -> None:
        self.inlet = Inlet(Streams(), {})
        self.has_members = True
        self.acknowledged: list[int] = []
        self.given_back: list[int] = []
        self.closed: list[str] = []
        self.appended: list[int] = []
        settings = FederationSettings.model_construct(
            host=FederationSettings().host.model_copy(update={"id": HERE}), max_inflight=WINDOW
        )
        self.handing = Handing(
            settings,
            Prefixes([]),
            cast("Any", self),
            lambda: self.inlet,
            cast("Any", self),
            cast("Any", self),
            cast("Any", self),
            cast("Any", self),
        )
        self.groups_end = 0

    # Its log, its groups, its ways, and its link.

    def append(self, *args: Any) -> None:
        self.appended.append(len(self.appended))
        args[4](0, len(self.appended), None)

    def has_receiver(self, *_: Any) -> bool:
        return self.has_members

    def when_known(self, action: Callable[[], None]) -> None:
        action()

    def spread(self) -> None: ...

    def update(self) -> None: ...

    def put_in_force(self, _end: int) -> None: ...

    def take(self, number: int, after: int) -> None:
        link = SimpleNamespace(
            site=NEIGHBOUR,
            may_bring=lambda _topic: True,
            acknowledge=lambda _c, publish: self.acknowledged.append(publish.packet_id),
        )
        connection = SimpleNamespace(give_back=self.given_back.append, close=self.closed.append)
        publish = handed(NEIGHBOUR, number, after)
        self.handing.take(cast("Any", link), cast("Any", connection), publish)

    def take_back(self, number: int) -> None:
        publish = handed(HERE, number, number - 1)
        self.handing.take_back(publish, lambda: self.acknowledged.append(number))


def handed(site: int, number: int, after: int) -> Publish:
    message = SiteMessage(ChainKey(site, 1, "f/1"), number, after, 0, 0, b"", 1, retain=False)
    headers = [(HEADER_ID, bytes(16)), (HEADER_CLIENT_ID, b"c"), (HEADER_ORIGIN, b"o")]
    origin = GroupOrigin(site, 1, 0, number, after, GROUP)
    publish = to_publish(Carried(message, 5, headers, site, origin), site, prefix="federator")
    publish.packet_id = number
    return publish


def key_of(site: int) -> StreamKey:
    named = GroupOrigin(site, 1, 0, 1, 0, GROUP).named()
    return StreamKey(named.key.origin, named.key.epoch, named.partition)


def test_what_neighbours_give_back_hides_nothing_that_another_has_not_been_sent() -> None:
    """One neighbour is away, and what it is to get is older than all that another gives back."""
    side = Side()
    back = range(10, 10 + 4 * MOST, 2)
    for number in back:
        side.take_back(number)
    assert side.acknowledged == list(back)
    stream = side.inlet.streams.get(key_of(HERE))
    assert stream is not None
    assert len(stream) <= MOST
    for number in (5, 11):
        verdict = side.inlet.hear_offer((key_of(HERE), number), lambda: None)
        assert verdict is InletVerdict.NEW, f"number {number} is never sent"
    last = side.inlet.hear_offer((key_of(HERE), back[-1]), lambda: None)
    assert last is InletVerdict.DUPLICATE


def test_a_connection_on_which_too_much_was_given_back_begins_anew() -> None:
    """A number that was given back may come again; the next connection says whether it does."""
    side = Side()
    number = 0
    while not side.closed:
        side.has_members = False
        side.take(number + 3, number)
        side.has_members = True
        side.take(number + 6, number + 3)
        number += 6
        assert number < 100
    stream = side.inlet.streams.get(key_of(NEIGHBOUR))
    assert stream is not None
    assert len(stream) == MOST + WINDOW
    assert "given back" in side.closed[0]
    assert number not in side.acknowledged
    side.handing.close(NEIGHBOUR)
    side.take(number, number - 1)
    assert len(side.closed) == 1
    assert side.acknowledged[-1] == number
    assert stream.gaps == [(number - 5, number - 1)]  # closed when the next one begins


def test_what_was_given_back_and_comes_again_is_taken_however_late() -> None:
    """The neighbour's log did not take it back: on the next connection it is sent first."""
    side = Side()
    side.take(2, 1)
    side.has_members = False
    side.take(4, 2)
    side.has_members = True
    for number in range(6, 6 + 2 * MOST, 2):
        side.take(number, number - 2)
    side.handing.close(NEIGHBOUR)
    side.take(4, 3)
    assert side.given_back == [4]
    assert len(side.appended) == 2 + MOST


@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans()), max_size=60))
def test_each_number_is_taken_or_given_back_once_over_connections(
    steps: list[tuple[bool, bool, bool]],
) -> None:
    """A neighbour that begins a connection where nothing is settled loses and doubles nothing.

    Each step says whether there is a member, whether the number is settled at the neighbour, and
    whether the connection breaks after it.
    """
    side, taken = Side(), set[int]()
    number, unsettled, after = 0, list[int](), 0

    def send(one: int) -> None:
        nonlocal after
        appended, before = len(side.appended), len(side.given_back)
        side.take(one, after or one - 1)
        after = one
        if one in taken:
            assert (len(side.appended), len(side.given_back)) == (appended, before)
        elif len(side.appended) > appended:
            taken.add(one)
        else:
            assert len(side.given_back) == before + 1 or side.closed

    for has_members, is_settled, breaks in steps:
        side.has_members = has_members
        number += 2
        send(number)
        # Settled in its order: what stands behind the first that is not may come again.
        if side.closed or not is_settled or unsettled:
            unsettled.append(number)
        if breaks or side.closed:
            side.closed.clear()
            side.handing.close(NEIGHBOUR)
            after = 0
            again, unsettled = unsettled, []
            for one in again:
                send(one)
                assert not side.closed
    stream = side.inlet.streams.get(key_of(NEIGHBOUR))
    assert stream is None or len(stream) <= MOST + WINDOW
