"""The subscriptions of one gateway's clients, and the clients that get a copy of a message.

A client with overlapping subscriptions gets one copy: the highest QoS, all subscription
identifiers. [MQTT5-3.3.4-2] [MQTT5-3.3.4-3] [MQTT5-3.3.4-4] [MQTT311-3.3.5-1] It could be one copy
for each subscription with its own identifier; it is not. [MQTT5-3.3.4-5] No client gets a message
that none of its filters matches. [MQTT5-3.3.2-3] [MQTT311-3.3.2-3] Of a share group one member gets
it, in turn among those that have room, with the QoS that was granted to it. [MQTT5-4.8.2-3]
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import randrange
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from ingest.session.plans import Plans
from mqlake.records.offsets import at, have_reached
from mqlake.topics.matching import TopicFilterTrie
from mqlake.topics.names import split_shared
from mqlake.topics.sharing import ShareStrategy, choose_member

if TYPE_CHECKING:
    from collections.abc import Sequence

NOT_YET: Final = 2**63
"""Start of a subscription in a partition as long as it is unknown: above every offset."""

ANY_MEMBER: Final = NOT_YET - 1
"""Offset of a message that has waited: for every member of which it is known where it starts."""

_FREE_STRATEGIES: Final = frozenset({ShareStrategy.ROUND_ROBIN, ShareStrategy.RANDOM})
"""With these any member may get any message."""


class Subscriber(Protocol):
    """A holder of subscriptions; compared by identity."""

    @property
    def client_id(self) -> str: ...
    @property
    def has_room(self) -> bool:
        """Tell whether a message given now leaves at once."""
        ...

    @property
    def is_full(self) -> bool:
        """Tell whether a message that cannot leave at once would be dropped."""
        ...


Client = TypeVar("Client", bound=Subscriber)


@dataclass(slots=True, eq=False)
class ClientSubscription(Generic[Client]):
    """One topic filter of one client, with the options it asked for."""

    client: Client
    topic_filter: str
    """As subscribed, `$share/<name>/` included."""
    qos: int
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0
    identifier: int | None = None
    """5.0 Subscription Identifier, sent with each message."""
    starts: Sequence[int] | None = None
    """Per partition of the log the first offset that counts; None once all of them have passed.

    The maker of the list may fill it in later, `NOT_YET` by `NOT_YET`.
    """

    _copy: Copy[Client] | None = field(default=None, init=False, repr=False)

    @property
    def copy(self) -> Copy[Client]:
        """The client's copy by this subscription alone: one object for all messages."""
        if self._copy is None:
            self._copy = _copy(self)
        return self._copy

    @property
    def is_conditional(self) -> bool:
        """Tell whether it depends on the matched message if this one counts."""
        return self.no_local or self.starts is not None

    @property
    def is_counted(self) -> bool:
        """Tell whether its start is known."""
        return self.starts is None or NOT_YET not in self.starts

    def covers(self, partition: int, offset: int, publisher: str) -> bool:
        if self.no_local and self.client.client_id == publisher:
            return False  # [MQTT5-3.8.3-3]
        return self.starts is None or offset >= at(self.starts, partition)


@dataclass(slots=True)
class Copy(Generic[Client]):
    """One client's copy of a message: its matching subscriptions together."""

    client: Client
    qos: int
    """The most any of them grants."""
    retain_as_published: bool
    identifiers: tuple[int, ...]
    shared_filter: str = ""
    """The shared subscription that it is for, `$share/<name>/` included."""


@dataclass(slots=True)
class _Plan(Generic[Client]):
    """Clients that get messages of one topic.

    Invariant: a client is in `copies`, when its copy is the same for every message, or its
    subscriptions are a group in `conditional` and are asked message by message.
    """

    copies: list[Copy[Client]]
    conditional: list[list[ClientSubscription[Client]]]


@dataclass(slots=True)
class _ShareGroup(Generic[Client]):
    members: list[ClientSubscription[Client]] = field(default_factory=list)
    by_client: dict[int, ClientSubscription[Client]] = field(default_factory=dict)
    """By identity of the client."""
    turn: int = 0
    """Member whose turn it was last."""

    def first_choice(self, strategy: ShareStrategy, topic_name: str, publisher: str) -> int:
        """Return which member is to get a message."""
        count = len(self.members)
        if strategy is ShareStrategy.ROUND_ROBIN:
            return (self.turn + 1) % count
        if strategy is ShareStrategy.RANDOM:
            return randrange(count)  # noqa: S311 - no secret
        if strategy is ShareStrategy.STICKY:
            return min(self.turn, count - 1)
        return choose_member(strategy, topic_name, publisher, count)


class Subscriptions(Generic[Client]):
    """All subscriptions of a gateway, by tenant.

    Args:
        share_strategy: For all share groups.
    """

    def __init__(self, share_strategy: ShareStrategy = ShareStrategy.ROUND_ROBIN) -> None:
        self._share_strategy = share_strategy
        self._tries: dict[str, TopicFilterTrie[ClientSubscription[Client]]] = {}
        self._groups: dict[tuple[str, str], _ShareGroup[Client]] = {}
        self._plans: Plans[_Plan[Client]] = Plans()
        self._plan_of = self._plans.of_topic.get
        # With their tenants.
        self._settling: dict[ClientSubscription[Client], str] = {}
        self._count = 0
        self._shared_count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def shared_count(self) -> int:
        return self._shared_count

    @property
    def plain_count(self) -> int:
        return self._count - self._shared_count

    def add(self, tenant: str, subscription: ClientSubscription[Client]) -> None:
        """Take a subscription up; one that the client already has must be removed before."""
        share_name, plain = split_shared(subscription.topic_filter)
        if share_name:
            group = self._groups.setdefault((tenant, subscription.topic_filter), _ShareGroup())
            group.members.append(subscription)
            group.by_client[id(subscription.client)] = subscription
            self._shared_count += 1
        else:
            trie = self._tries.get(tenant)
            if trie is None:
                trie = self._tries[tenant] = TopicFilterTrie()
            trie.insert(plain, subscription)
            self._plans.forget(tenant, plain)
        if subscription.starts is not None:
            self._settling[subscription] = tenant
        self._count += 1

    def remove(self, tenant: str, subscription: ClientSubscription[Client]) -> None:
        """Drop a subscription that was added."""
        share_name, plain = split_shared(subscription.topic_filter)
        if share_name:
            key = (tenant, subscription.topic_filter)
            group = self._groups[key]
            at = group.members.index(subscription)
            del group.members[at]
            del group.by_client[id(subscription.client)]
            if at <= group.turn and group.turn > 0:
                group.turn -= 1  # the turn is the same member's
            self._shared_count -= 1
            if not group.members:
                del self._groups[key]
        else:
            self._tries[tenant].remove(plain, subscription)
            self._plans.forget(tenant, plain)
        if subscription.starts is not None:
            del self._settling[subscription]
        self._count -= 1

    def settle(self, high_water_marks: Sequence[int]) -> None:
        """Make subscriptions unconditional whose starts lie at or below the marks."""
        if not self._settling:
            return
        next_offsets = [mark + 1 for mark in high_water_marks]
        waiting: dict[ClientSubscription[Client], str] = {}
        for subscription, tenant in self._settling.items():
            starts = subscription.starts
            assert starts is not None
            if have_reached(next_offsets, starts):
                subscription.starts = None
                share_name, plain = split_shared(subscription.topic_filter)
                if not share_name:
                    self._plans.forget(tenant, plain)
            else:
                waiting[subscription] = tenant
        self._settling = waiting

    def copies(
        self, tenant: str, topic_name: str, partition: int, offset: int, publisher: str
    ) -> list[Copy[Client]]:
        """Return the copies of a message at this position of the log, share groups not counted."""
        plan = self._plan_of((tenant, topic_name))
        if plan is None:
            plan = self._make_plan(tenant, topic_name)
        if not plan.conditional:
            return plan.copies
        copies = plan.copies.copy()
        for group in plan.conditional:
            counting = [one for one in group if one.covers(partition, offset, publisher)]
            if counting:
                copies.append(_merge(counting))
        return copies

    def reach(self, tenant: str, topic_name: str) -> int:
        """Return how many clients get a message of a topic, share groups not counted."""
        plan = self._plan_of((tenant, topic_name))
        if plan is None:
            plan = self._make_plan(tenant, topic_name)
        return len(plan.copies) + len(plan.conditional)

    def shared_copy(
        self,
        tenant: str,
        topic_filter: str,
        topic_name: str,
        publisher: str,
        partition: int,
        offset: int,
        *,
        can_wait: bool,
    ) -> Copy[Client] | None:
        """Return the copy for the member of the strategy's choice.

        Where the strategy leaves it open which member gets a message, one with room is chosen
        before one without. Members that count from a later offset are passed over unless there are
        no others: the router has given the message to this gateway's membership, so no
        other one gets it.

        Args:
            tenant: Tenant of the group.
            topic_filter: Topic filter of the group.
            topic_name: Topic of the message.
            publisher: Client identifier of the publisher.
            partition: Partition of the message in `mqlake.inbound`.
            offset: Offset of the message there.
            can_wait: None is returned while no member has room for it; else a member without room
                gets it.
        """
        group = self._groups.get((tenant, topic_filter))
        if group is None:
            return None
        members = group.members
        strategy = self._share_strategy
        first = group.first_choice(strategy, topic_name, publisher)
        # Where a hash chooses the member, the message waits with that.
        is_free = strategy in _FREE_STRATEGIES
        fallback: int | None = None
        count = len(members)
        for step in range(count):
            chosen = (first + step) % count
            member = members[chosen]
            starts = member.starts
            if starts is not None and offset < at(starts, partition):
                continue
            client = member.client
            if client.has_room if is_free else not client.is_full:
                group.turn = chosen
                return _shared(member)
            if fallback is None:
                fallback = chosen
            if not is_free:
                break
        if can_wait and (
            fallback is not None or offset == ANY_MEMBER or not members[first].client.has_room
        ):
            return None
        group.turn = first if fallback is None else fallback
        return _shared(members[group.turn])

    def copy_for_member(
        self, tenant: str, topic_filter: str, client: Client
    ) -> Copy[Client] | None:
        """Return the copy for a member that has room; None when it is none, or not its turn."""
        group = self._groups.get((tenant, topic_filter))
        if group is None or self._share_strategy not in _FREE_STRATEGIES:
            return None
        subscription = group.by_client.get(id(client))
        return None if subscription is None else _shared(subscription)

    def shared_members(self, tenant: str, topic_filter: str) -> list[Client]:
        """Return the clients that share a subscription."""
        group = self._groups.get((tenant, topic_filter))
        return [] if group is None else [member.client for member in group.members]

    def _make_plan(self, tenant: str, topic_name: str) -> _Plan[Client]:
        plan: _Plan[Client] = _Plan([], [])
        first: dict[int, ClientSubscription[Client]] = {}  # by identity of the client
        overlapping: dict[int, list[ClientSubscription[Client]]] = {}
        trie = self._tries.get(tenant)
        for subscription in () if trie is None else trie.match(topic_name):
            client = id(subscription.client)
            other = first.setdefault(client, subscription)
            if other is not subscription:
                overlapping.setdefault(client, [other]).append(subscription)
        for client, subscription in first.items():
            if client in overlapping:
                group = overlapping[client]
                if any(one.is_conditional for one in group):
                    plan.conditional.append(group)
                else:
                    plan.copies.append(_merge(group))
            elif subscription.is_conditional:
                plan.conditional.append([subscription])
            else:  # nearly always
                plan.copies.append(subscription.copy)
        self._plans.put(tenant, topic_name, plan)
        return plan


def _shared(subscription: ClientSubscription[Client]) -> Copy[Client]:
    copy = _copy(subscription)
    copy.shared_filter = subscription.topic_filter
    return copy


def _copy(subscription: ClientSubscription[Client]) -> Copy[Client]:
    identifier = subscription.identifier
    return Copy(
        subscription.client,
        subscription.qos,
        subscription.retain_as_published,
        () if identifier is None else (identifier,),
    )


def _merge(subscriptions: Sequence[ClientSubscription[Client]]) -> Copy[Client]:
    if len(subscriptions) == 1:
        return subscriptions[0].copy
    copy = _copy(subscriptions[0])
    for other in subscriptions[1:]:
        copy.qos = max(copy.qos, other.qos)
        copy.retain_as_published = copy.retain_as_published or other.retain_as_published
        if other.identifier is not None:
            copy.identifiers += (other.identifier,)
    return copy
