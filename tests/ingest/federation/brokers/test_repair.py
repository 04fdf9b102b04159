"""How one site asks for what it misses, word by word."""

from ingest.federation.brokers.core import Federator
from ingest.federation.brokers.events import Beacon, Deliver, LinkDown, LinkUp, PassedOn, Send
from ingest.federation.envelope import ChainKey, SiteMessage
from ingest.federation.packets import ControlPacket, Head, Lack, Want, Wave, Word

KEY = ChainKey(1, 1, "t")


class Alone:
    """Site 5 with neighbours 1, 2 and 3 that are there; the test says what they say."""

    def __init__(self) -> None:
        self.now = 100.0
        self.site = Federator(5, 1, (1, 2, 3), now=self.now)
        for neighbour in (1, 2, 3):
            self.site.step(LinkUp(neighbour), self.now)
            self.hear(neighbour)
        self.site.step(Beacon("t", is_permanent=True), self.now)
        self.delivered: list[int] = []
        self.take()

    def hear(self, sender: int, *words: Word) -> None:
        self.site.step(ControlPacket(sender, 1, list(words)), self.now)

    def route(self, sender: int, sequence: int, after: int, gap_ms: int = 0) -> None:
        message = SiteMessage(KEY, sequence, after, gap_ms, 0, b"", 1, False)
        self.site.step(PassedOn(sender, message), self.now)

    def wait(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now += 0.1
            self.site.tick(self.now)

    def take(self) -> dict[int, list[Word | int]]:
        """Return the words about messages, and the sequences of messages, for each neighbour."""
        found: dict[int, list[Word | int]] = {}
        for effect in self.site.ready(self.now):
            if isinstance(effect, Deliver):
                self.delivered.append(effect.message.sequence)
            elif isinstance(effect, Send):
                packet = effect.packet
                words: list[Word | int] = (
                    [packet.sequence]
                    if isinstance(packet, SiteMessage)
                    else [one for one in packet.words if isinstance(one, Want | Lack)]
                )
                if words:
                    found.setdefault(effect.neighbour, []).extend(words)
        return found


def only(words: list[Word | int]) -> Want:
    (found,) = words
    assert isinstance(found, Want)
    return found


def test_what_a_neighbour_tells_of_is_asked_for_until_it_comes() -> None:
    site = Alone()
    site.wait(1)
    site.hear(2, Head(KEY, 4, 0, 0))
    assert only(site.take()[2])[:3] == (KEY, 0, 4)
    site.site.step(LinkDown(2), site.now)  # the answer is lost
    site.site.step(LinkUp(2), site.now)
    site.wait(0.3)
    site.hear(2, Head(KEY, 4, 300, 0))
    assert site.take() == {}  # it may be on its way
    site.wait(0.8)
    asked = site.take()
    assert asked.keys() == {1, 2, 3}
    assert only(asked[2])[:3] == (KEY, 0, 4)
    site.route(2, 4, 0)
    site.wait(15)
    site.take()
    assert site.delivered == [4]


def test_everybody_is_asked_as_soon_as_the_neighbour_lacks_it() -> None:
    site = Alone()
    site.wait(1)
    site.route(2, 4, 3)
    site.wait(0.2)
    assert only(site.take()[2])[:3] == (KEY, 0, 3)
    site.hear(2, Lack(KEY, 3))
    site.wait(0.1)
    asked = site.take()
    assert asked.keys() == {1, 2, 3}
    wave = only(asked[1]).wave
    for neighbour in (1, 2):
        site.hear(neighbour, Lack(KEY, 3, wave))
    site.take()
    assert site.delivered == []
    site.hear(3, Lack(KEY, 3, wave))
    site.take()
    assert site.delivered == [4]


def test_a_site_says_that_nobody_has_it_when_all_others_have() -> None:
    site = Alone()
    wave = Wave(9, 1, 1)
    site.hear(2, Want(KEY, 0, 3, 0))
    assert site.take() == {2: [Lack(KEY, 3)]}
    site.hear(2, Want(KEY, 0, 3, 0, wave))
    assert site.take() == {1: [Want(KEY, 0, 3, 0, wave)], 3: [Want(KEY, 0, 3, 0, wave)]}
    site.hear(1, Lack(KEY, 3, wave))
    assert site.take() == {}
    site.hear(3, Want(KEY, 0, 3, 0, wave))  # on its way round it met itself
    assert site.take() == {2: [Lack(KEY, 3, wave)]}


def test_a_site_that_waits_for_it_does_not_say_that_nobody_has_it() -> None:
    site = Alone()
    site.route(1, 2, 0)
    site.route(1, 4, 3)
    site.take()
    wave = Wave(9, 1, 1)
    site.hear(2, Want(KEY, 2, 3, 0, wave))
    for neighbour in (1, 3):
        site.hear(neighbour, Lack(KEY, 3, wave))
    assert 2 not in site.take()


def test_what_comes_for_a_neighbour_goes_to_it_alone_and_not_to_subscribers() -> None:
    site = Alone()
    site.route(1, 4, 3, gap_ms=10_000)  # the one before is from before its subscribers
    wave = Wave(9, 1, 1)
    site.hear(2, Want(KEY, 0, 3, 20_000, wave))
    site.take()
    site.route(3, 3, 0)
    assert site.take() == {2: [3]}
    site.route(1, 3, 0)
    assert site.take() == {}
    assert site.delivered == [4]
    assert site.site.counters.duplicates == 1
    site.hear(3, Want(KEY, 0, 3, 20_000, Wave(9, 1, 2)))
    assert site.take() == {3: [3]}  # it is there now


def test_who_knows_of_a_message_gets_it_whatever_the_clocks_say() -> None:
    site = Alone()
    site.route(1, 3, 2)
    site.wait(1)
    site.take()
    site.hear(2, Want(KEY, 0, 3, within_ms=500))
    assert site.take() == {2: [3]}  # and no Lack: what is before is older still
