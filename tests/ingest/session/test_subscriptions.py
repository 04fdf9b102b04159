from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.session import plans
from ingest.session.subscriptions import NOT_YET, ClientSubscription, Copy, Subscriptions
from mqlake.topics.matching import filter_matches
from mqlake.topics.names import split_shared
from mqlake.topics.sharing import ShareStrategy


@dataclass(eq=False)
class Client:
    client_id: str
    has_room: bool = True
    is_full: bool = False


ALICE, BOB, CAROL = Client("alice"), Client("bob"), Client("carol")
CLIENTS = (ALICE, BOB, CAROL)
FILTERS = (
    *("a", "a/b", "a/+", "a/#", "+/b", "+", "#", "$SYS/#", "/", "+/+", "/+", "/b/#"),
    *("a/b/c/#", "a/b/c/+", "a/b/c/d/+", "a/b/c/d/e/#", "a/b/+/d"),
)
TOPICS = ("a", "a/b", "a/b/c", "a/b/c/d", "a/b/c/d/e", "b", "$SYS/b", "/", "/b", "$SYS")
OFFSETS = st.integers(0, 4)
SUBSCRIPTIONS = st.builds(
    ClientSubscription,
    st.sampled_from(CLIENTS),
    st.sampled_from(FILTERS),
    st.integers(0, 2),
    no_local=st.booleans(),
    retain_as_published=st.booleans(),
    identifier=st.none() | st.integers(1, 5),
    starts=st.none() | st.lists(OFFSETS, min_size=2, max_size=2),
)

Answer = dict[str, tuple[int, bool, list[int]]]


def told(copies: list[Copy[Client]]) -> Answer:
    answer = {
        copy.client.client_id: (copy.qos, copy.retain_as_published, sorted(copy.identifiers))
        for copy in copies
    }
    assert len(answer) == len(copies), "a client got more than one copy"
    return answer


def expected(
    held: list[tuple[str, ClientSubscription[Client]]],
    tenant: str,
    topic_name: str,
    place: tuple[int, int],
    publisher: str,
) -> Answer:
    """Say the same by asking every subscription."""
    partition, offset = place
    answer: Answer = {}
    for owner, one in held:
        if owner != tenant or not filter_matches(one.topic_filter, topic_name):
            continue
        if one.no_local and one.client.client_id == publisher:
            continue
        if one.starts is not None and offset < one.starts[partition]:
            continue
        qos, retain, identifiers = answer.get(one.client.client_id, (0, False, []))
        if one.identifier is not None:
            identifiers = sorted([*identifiers, one.identifier])
        answer[one.client.client_id] = (
            max(qos, one.qos),
            retain or one.retain_as_published,
            identifiers,
        )
    return answer


@given(st.data())
def test_copies_are_those_of_a_plain_search(data: st.DataObject) -> None:
    subscriptions: Subscriptions[Client] = Subscriptions()
    held: list[tuple[str, ClientSubscription[Client]]] = []
    for adds in data.draw(st.lists(st.booleans(), min_size=1, max_size=12)):
        if held and not adds:
            tenant, gone = held.pop(data.draw(st.integers(0, len(held) - 1)))
            subscriptions.remove(tenant, gone)
        else:
            tenant = data.draw(st.sampled_from(("one", "two")))
            added = data.draw(SUBSCRIPTIONS)
            held.append((tenant, added))
            subscriptions.add(tenant, added)
        if data.draw(st.booleans()):
            marks = data.draw(st.lists(st.integers(-1, 4), min_size=2, max_size=2))
            subscriptions.settle(marks)
        assert len(subscriptions) == len(held)
        place = (data.draw(st.integers(0, 1)), data.draw(OFFSETS))
        publisher = data.draw(st.sampled_from(("alice", "bob", "nobody")))
        for topic_name in TOPICS:
            for tenant in ("one", "two", "none"):
                copies = subscriptions.copies(tenant, topic_name, *place, publisher)
                assert told(copies) == expected(held, tenant, topic_name, place, publisher)


def test_overlapping_subscriptions_give_one_copy_with_all_identifiers() -> None:
    subscriptions: Subscriptions[Client] = Subscriptions()
    subscriptions.add("t", ClientSubscription(ALICE, "a/#", 0, identifier=1))
    subscriptions.add("t", ClientSubscription(ALICE, "a/b", 2, identifier=2))
    subscriptions.add("t", ClientSubscription(ALICE, "+/b", 1, retain_as_published=True))
    assert told(subscriptions.copies("t", "a/b", 0, 0, "bob")) == {"alice": (2, True, [1, 2])}


def test_a_subscription_alone_has_one_copy_for_all_topics() -> None:
    subscriptions: Subscriptions[Client] = Subscriptions()
    subscriptions.add("t", ClientSubscription(ALICE, "#", 1))
    subscriptions.add("t", ClientSubscription(ALICE, "b", 2, identifier=2))
    (alone,) = subscriptions.copies("t", "a", 0, 0, "bob")
    (merged,) = subscriptions.copies("t", "b", 0, 0, "bob")
    assert (merged.qos, merged.identifiers) == (2, (2,))
    assert subscriptions.copies("t", "c", 0, 0, "bob")[0] is alone
    assert (alone.qos, alone.identifiers) == (1, ())


def test_no_local_silences_only_the_subscription_that_asked_for_it() -> None:
    subscriptions: Subscriptions[Client] = Subscriptions()
    subscriptions.add("t", ClientSubscription(ALICE, "a/#", 2, no_local=True, identifier=1))
    subscriptions.add("t", ClientSubscription(ALICE, "a/b", 0, identifier=2))
    assert told(subscriptions.copies("t", "a/b", 0, 0, "alice")) == {"alice": (0, False, [2])}
    assert told(subscriptions.copies("t", "a/b", 0, 0, "bob")) == {"alice": (2, False, [1, 2])}
    assert told(subscriptions.copies("t", "a/c", 0, 0, "alice")) == {}


def test_a_subscription_counts_from_its_start_in_each_partition() -> None:
    subscriptions: Subscriptions[Client] = Subscriptions()
    subscription = ClientSubscription(ALICE, "a", 1, starts=[5, 0])
    subscriptions.add("t", subscription)
    assert not subscriptions.copies("t", "a", 0, 4, "bob")
    assert subscriptions.copies("t", "a", 0, 5, "bob")
    assert subscriptions.copies("t", "a", 1, 0, "bob")
    subscriptions.settle([3, 10])
    assert subscription.starts == [5, 0]
    subscriptions.settle([4, -1])
    assert subscription.starts is None
    # A mark is never taken back; nothing below it is asked about again.
    assert subscriptions.copies("t", "a", 0, 5, "bob")


def test_share_group_members_take_turns() -> None:
    subscriptions: Subscriptions[Client] = Subscriptions()
    for number, client in enumerate(CLIENTS):
        subscriptions.add("t", ClientSubscription(client, "$share/g/a", number, identifier=number))
    copies = [
        subscriptions.shared_copy("t", "$share/g/a", "a", "p", 0, 0, can_wait=True)
        for _ in range(6)
    ]
    chosen = [copy.client.client_id for copy in copies if copy is not None]
    assert sorted(chosen[:3]) == ["alice", "bob", "carol"]
    assert chosen[:3] == chosen[3:]
    assert not subscriptions.copies("t", "a", 0, 0, "bob"), "only the router calls on a group"


def test_share_groups_are_apart_by_name_filter_and_tenant() -> None:
    subscriptions: Subscriptions[Client] = Subscriptions()
    subscriptions.add("t", ClientSubscription(ALICE, "$share/g/a", 1))
    subscriptions.add("t", ClientSubscription(BOB, "$share/h/a", 1))
    subscriptions.add("u", ClientSubscription(CAROL, "$share/g/a", 1))
    for tenant, topic_filter, client in (
        ("t", "$share/g/a", ALICE),
        ("t", "$share/h/a", BOB),
        ("u", "$share/g/a", CAROL),
    ):
        copy = subscriptions.shared_copy(tenant, topic_filter, "a", "p", 0, 0, can_wait=True)
        assert copy is not None
        assert copy.client is client


def test_a_share_group_goes_with_its_last_member() -> None:
    subscriptions: Subscriptions[Client] = Subscriptions()
    members = [ClientSubscription(client, "$share/g/a", 1) for client in (ALICE, BOB)]
    for member in members:
        subscriptions.add("t", member)
    subscriptions.remove("t", members[0])
    copies = [
        subscriptions.shared_copy("t", "$share/g/a", "a", "p", 0, 0, can_wait=True)
        for _ in range(2)
    ]
    assert [copy.client for copy in copies if copy is not None] == [BOB, BOB]
    subscriptions.remove("t", members[1])
    assert subscriptions.shared_copy("t", "$share/g/a", "a", "p", 0, 0, can_wait=True) is None
    assert len(subscriptions) == 0


def test_a_share_group_prefers_members_that_count_already() -> None:
    subscriptions: Subscriptions[Client] = Subscriptions()
    subscriptions.add("t", ClientSubscription(ALICE, "$share/g/a", 1, starts=[5]))
    subscriptions.add("t", ClientSubscription(BOB, "$share/g/a", 1, starts=[0]))
    early = [
        subscriptions.shared_copy("t", "$share/g/a", "a", "p", 0, 4, can_wait=True)
        for _ in range(4)
    ]
    assert [copy.client for copy in early if copy is not None] == [BOB] * 4


def test_a_member_with_room_is_chosen_before_one_without() -> None:
    subscriptions: Subscriptions[Client] = Subscriptions()
    members = [Client(name) for name in ("a", "b", "c")]
    for client in members:
        subscriptions.add("t", ClientSubscription(client, "$share/g/a", 1))

    def chosen(count: int, *, can_wait: bool = True) -> str:
        found = ""
        for _ in range(count):
            copy = subscriptions.shared_copy("t", "$share/g/a", "a", "p", 0, 0, can_wait=can_wait)
            found += "-" if copy is None else copy.client.client_id
        return found

    assert sorted(chosen(3)) == ["a", "b", "c"]
    members[1].has_room = False
    assert sorted(chosen(4)) == ["a", "a", "c", "c"], "in turn among those with room"
    members[0].has_room = members[2].has_room = False
    assert chosen(2) == "--", "it waits for the group, not with a member"
    assert set(chosen(6, can_wait=False)) == {"a", "b", "c"}, "QoS 0 does not wait"
    copy = subscriptions.copy_for_member("t", "$share/g/a", members[1])
    assert copy is not None
    assert copy.client is members[1]
    assert subscriptions.copy_for_member("t", "$share/g/a", Client("nobody")) is None


def test_a_hash_means_one_member_whether_it_has_room_or_not() -> None:
    subscriptions: Subscriptions[Client] = Subscriptions(ShareStrategy.HASH_TOPIC)
    members = [Client(name) for name in ("a", "b")]
    for client in members:
        subscriptions.add("t", ClientSubscription(client, "$share/g/a", 1))
    first = subscriptions.shared_copy("t", "$share/g/a", "a", "p", 0, 0, can_wait=True)
    assert first is not None
    first.client.has_room = False
    again = subscriptions.shared_copy("t", "$share/g/a", "a", "p", 0, 0, can_wait=True)
    assert again is not None
    assert again.client is first.client
    first.client.is_full = True
    assert subscriptions.shared_copy("t", "$share/g/a", "a", "p", 0, 0, can_wait=True) is None
    assert subscriptions.copy_for_member("t", "$share/g/a", first.client) is None


def test_a_message_that_the_router_gave_to_a_group_is_never_nobodys() -> None:
    """Another gateway's members do not get it: the router has chosen this one."""
    subscriptions: Subscriptions[Client] = Subscriptions()
    subscriptions.add("t", ClientSubscription(ALICE, "$share/g/a", 1, starts=[5]))
    copy = subscriptions.shared_copy("t", "$share/g/a", "a", "p", 0, 4, can_wait=True)
    assert copy is not None
    assert copy.client is ALICE


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=20))
def test_share_groups_hold_exactly_the_members_added(steps: list[tuple[int, bool]]) -> None:
    subscriptions: Subscriptions[Client] = Subscriptions()
    held: dict[int, ClientSubscription[Client]] = {}
    for number, wanted in steps:
        if wanted and number not in held:
            held[number] = ClientSubscription(CLIENTS[number], "$share/g/a", 1)
            subscriptions.add("t", held[number])
        elif not wanted and number in held:
            subscriptions.remove("t", held.pop(number))
        copies = [
            subscriptions.shared_copy("t", "$share/g/a", "a", "p", 0, 0, can_wait=True)
            for _ in held
        ]
        chosen = {copy.client.client_id for copy in copies if copy is not None}
        assert chosen == {CLIENTS[number].client_id for number in held}


def test_plans_are_forgotten_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "MAX_PLANS", 2)
    subscriptions: Subscriptions[Client] = Subscriptions()
    subscriptions.add("t", ClientSubscription(ALICE, "#", 1))
    for topic_name in ("a", "b", "c", "a", "b"):
        assert told(subscriptions.copies("t", topic_name, 0, 0, "")) == {"alice": (1, False, [])}


def test_the_shared_prefix_is_needed_for_a_group() -> None:
    assert split_shared("$shared/g/a") == ("", "$shared/g/a")


@pytest.mark.parametrize("strategy", sorted({*ShareStrategy} - {ShareStrategy.LAST_RESORT}))
def test_each_strategy_chooses_among_the_members(strategy: ShareStrategy) -> None:
    subscriptions: Subscriptions[Client] = Subscriptions(strategy)
    members = [Client(str(number)) for number in range(3)]
    held = [ClientSubscription(member, "$share/g/+", 1) for member in members]
    for one in held:
        subscriptions.add("t", one)

    def chosen(topic_name: str, publisher: str) -> str:
        copy = subscriptions.shared_copy(
            "t", "$share/g/+", topic_name, publisher, 0, 0, can_wait=True
        )
        assert copy is not None
        return copy.client.client_id

    topics = [str(number % 20) for number in range(200)]
    by_topic = {(topic, chosen(topic, "p")) for topic in topics}
    by_publisher = {(publisher, chosen("a", publisher)) for publisher in topics}
    counts = {
        ShareStrategy.ROUND_ROBIN: (60, 60),
        ShareStrategy.STICKY: (20, 20),
        ShareStrategy.HASH_TOPIC: (20, 20),
        ShareStrategy.HASH_CLIENT_ID: (20, 20),
    }
    if strategy is not ShareStrategy.RANDOM:
        assert (len(by_topic), len(by_publisher)) == counts[strategy]
    used = {member for _, member in by_topic | by_publisher}
    assert len(used) == (1 if strategy is ShareStrategy.STICKY else 3)
    first = chosen("a", "p")
    for one in held:
        if one.client.client_id != first:
            subscriptions.remove("t", one)
    assert chosen("b", "q") == first


def test_a_start_that_becomes_known_counts_from_then_on() -> None:
    subscriptions = Subscriptions[Client]()
    starts = [NOT_YET, NOT_YET]
    subscription = ClientSubscription(ALICE, "a", 1, starts=starts)
    subscriptions.add("t", subscription)
    assert not subscriptions.copies("t", "a", 0, 9, "x")
    starts[0] = 7
    assert not subscription.is_counted
    assert subscriptions.copies("t", "a", 0, 7, "x")
    assert not subscriptions.copies("t", "a", 0, 6, "x")
    assert not subscriptions.copies("t", "a", 1, 9, "x")
    subscriptions.settle([9, 9])
    assert subscription.starts is starts, "not all have passed"
    starts[1] = 3
    assert subscription.is_counted
    subscriptions.settle([9, 9])
    assert subscription.starts is None
    assert subscription.is_counted
