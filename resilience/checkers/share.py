"""Share groups: each message goes to one member."""

from dataclasses import dataclass, field
from typing import ClassVar

from resilience.checkers.base import Checker
from resilience.checkers.delivery import is_for
from resilience.history import Operation
from resilience.topics import matches
from resilience.world import SECOND, KnownConnection, KnownMessage, KnownSubscription, World

Group = tuple[str, str, str]
"""Tenant, name and filter."""


@dataclass(slots=True)
class _Delivery:
    subscription: KnownSubscription
    connection: KnownConnection
    line: int
    time: int
    qos: int
    dup: bool


@dataclass(slots=True)
class _State:
    members: list[KnownSubscription] = field(default_factory=list)
    got: dict[int, list[_Delivery]] = field(default_factory=dict)
    overlapping: set[int] = field(default_factory=set)
    """Messages that came to a client which has another subscription for them: these look alike."""


class ShareGroup(Checker):
    name: ClassVar[str] = "share-group"
    clause: ClassVar[str] = (
        "a shared subscription gives each message to one of its members [MQTT5-4.8.2]"
    )
    promise: ClassVar[str] = "shared_subscriptions"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._groups: dict[Group, _State] = {}

    def on_subscribe_invoke(self, _op: Operation) -> None:
        sub = self.world.subscription
        if sub is not None and sub.share and self.world.session is not None:
            group = (sub.session.key[0], sub.share, sub.topic_filter)
            self._groups.setdefault(group, _State()).members.append(sub)

    def on_receive_ok(self, op: Operation) -> None:
        world = self.world
        message, session = world.message, world.session
        if message is None or session is None or not session.has_share or op.get("retain"):
            return
        matching = session.matching(message.topic)
        # One for each group: a member that subscribes again is still one member.
        for sub in {sub.full_filter: sub for sub in matching if sub.share}.values():
            state = self._groups[session.key[0], sub.share, sub.topic_filter]
            if len({other.full_filter for other in matching}) > 1:
                state.overlapping.add(message.number)
            delivery = _Delivery(
                sub, world.connection, world.line, world.time, op["qos"], bool(op.get("dup"))
            )
            state.got.setdefault(message.number, []).append(delivery)

    def finish(self) -> None:
        messages = list(self.world.messages.values())
        for (tenant, _name, topic_filter), state in self._groups.items():
            for message in messages:
                if message.connection.key[0] != tenant or message.is_will:
                    continue
                if not matches(topic_filter, message.topic) or message.number in state.overlapping:
                    continue
                deliveries = state.got.get(message.number)
                if deliveries is None:
                    self._check_none(state, message)
                else:
                    self._check_two(message, deliveries)

    def _check_two(self, message: KnownMessage, deliveries: list[_Delivery]) -> None:
        first, *more = deliveries
        self.checked += 1
        for other in more:
            once = _is_once(message, first, other)
            if other.subscription.session is first.subscription.session:
                repeated = not other.dup and other.connection is first.connection
                if once or (repeated and not message.resent):
                    self.blame("two", message.line, first.line, other.line)
                    return
                continue
            # The broker may move a message away from a receiver that is going, while it is still on
            # its way to that one: only receivers that stay were surely given it both.
            drain = self.world.drain_line
            stayed = first.connection.served_line > other.line
            ends = [
                end
                for each in (first, other)
                for end in (each.connection.end_line, each.subscription.end_line)
            ]
            left = any(end > 0 and (not drain or end < drain) for end in ends)
            if not once and (message.resent or not stayed or left):
                self.unknown += 1
                return
            self.blame("two", message.line, first.line, other.line)
            return

    def _check_none(self, state: _State, message: KnownMessage) -> None:
        world = self.world
        if not message.qos or message.state != "ok" or message.empty:
            return
        if message.expiry is not None:
            return
        drain = world.drain_line
        there = [
            sub
            for sub in state.members
            if sub.qos and sub.holds(message.line, drain) and is_for(sub, message)
        ]
        if not there:
            return
        gone = [sub for sub in state.members if self._is_gone(sub, message)]
        # A member that left after the message may have taken it along.
        rest = [
            sub
            for sub in state.members
            if sub not in gone
            and (sub not in there or not sub.session.ready)
            and sub.line < (drain or sub.line + 1)
            and not sub.line > message.done_line
        ]
        if rest or not drain or message.line > drain:
            self.unknown += 1
            return
        self.checked += 1
        if gone:
            ended = max(gone, key=lambda sub: sub.end_line)
            self.blame("dead member", ended.end_line, message.line, message.done_line)
        else:
            self.blame("none", there[0].ok_line, message.line, message.done_line)

    def _is_gone(self, sub: KnownSubscription, message: KnownMessage) -> bool:
        """Tell whether the broker knew before the message that this member had left."""
        if 0 < sub.unsubscribed_line < message.line:
            return True
        if not 0 < sub.end_line < message.line or sub.unsubscribe_line:
            return False
        connection = sub.session.connection
        if not connection.end or connection.end_line > message.line:
            return False
        return connection.confirmed or message.time > connection.end_time + 2 * SECOND


def _is_once(message: KnownMessage, *deliveries: _Delivery) -> bool:
    """Tell whether there may be one of these, whichever connections broke.

    With QoS 2 the broker finishes with the receiver it has begun with [MQTT5-4.8.2-5].
    """
    return not message.unsure and all(
        delivery.qos == 2
        and not delivery.subscription.end_line
        and not delivery.subscription.session.moved
        for delivery in deliveries
    )
