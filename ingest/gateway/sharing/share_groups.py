"""Share groups over all gateways: each message to one member, wherever it is, and none forgotten.

A gateway with members of a group has a membership in it, which joins, leaves and takes over as the
owner of the group's shard tells it (`ingest.session.groups.share_groups`, `share_membership`).
Decisions of these are performed by `share_runner.py`; members' messages go through the membership
(`share_membership.py`).
"""

from __future__ import annotations

import asyncio
import json
import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ingest.gateway.sharing.share_membership import NOT_KNOWN, ShareMembership
from ingest.gateway.sharing.share_questions import ShareQuestions
from ingest.gateway.sharing.share_reading import ShareReader
from ingest.gateway.sharing.share_redelivery import ShareRedelivery
from ingest.gateway.sharing.share_runner import MembershipRunner
from ingest.gateway.sharing.share_saving import MembershipSaver
from ingest.session.groups.share_acts import BEGIN, GO, KEPT, LOST, TAKE_OVER, TAKEN_OVER
from ingest.session.groups.share_membership import JoinStart
from ingest.session.groups.share_records import (
    GroupKey,
    MembershipState,
    decode_membership,
    group_shard,
)
from ingest.session.subscriptions import Copy
from mqlake.errors import InvalidRecord
from mqlake.records.offsets import earliest

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Sequence

    from ingest.gateway.base.context import Context
    from ingest.gateway.history.lookup import Lookup
    from ingest.gateway.log.delivered import Delivered
    from ingest.gateway.log.ends import Ends
    from ingest.gateway.routing.route_rounds import RouteRequest
    from ingest.gateway.routing.routes import Routes
    from ingest.gateway.sending.group_step import GroupMember
    from ingest.gateway.sending.sender_context import OutgoingMessage
    from ingest.gateway.sending.sending import Sender
    from ingest.gateway.sharing.share_gaps import ShareGaps
    from ingest.gateway.sharing.share_log import ShareLog
    from ingest.gateway.sharing.share_settling import MissedDeliveries, ShareSettler
    from ingest.session.subscriptions import Subscriptions
    from mqlake.records.messages import Route
    from mqlake.records.progress import ProgressRecord
    from mqlake.records.shards import Key

logger = logging.getLogger(__name__)

CLOSE_SECONDS: Final = 2.0
"""How long a gateway that stops tries to leave its groups in order; the owner settles it else."""

MESSAGE_QOS: Final = 2
"""A membership takes messages as they come; the member's subscription limits their QoS."""


class ShareGroups:
    """The share groups that this gateway has members of.

    Args:
        context: Shared by all parts of the gateway.
        log: Takes the records of memberships.
        routes: Routes of this gateway.
        subscriptions: Those in force: they know the members.
        delivered: How far this gateway has come.
        ends: Say where deliveries begin that are for a new membership.
        lookup: Finds given messages that are not in memory.
        gaps: Reads messages that a group has missed.

    Attributes:
        memberships: Memberships of this gateway, by group; only this object changes the mapping.
    """

    def __init__(
        self,
        context: Context,
        log: ShareLog,
        routes: Routes,
        subscriptions: Subscriptions[Sender],
        delivered: Delivered,
        ends: Ends,
        lookup: Lookup,
        gaps: ShareGaps,
    ) -> None:
        self._context = context
        self._log = log
        self._routes = routes
        self._subscriptions = subscriptions
        self._delivered = delivered
        self.memberships: dict[GroupKey, ShareMembership] = {}
        # Memberships whose present state is not in the log.
        self._changed: dict[ShareMembership, None] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self._ended = asyncio.Event()
        self._saver = saver = MembershipSaver(log, context.loop, self._changed)
        self._redelivery = ShareRedelivery(context, log, self.memberships)
        self._runner = MembershipRunner(
            context, log, routes, ends, saver, self._enter_when_joined, self._open
        )
        self._reader = ShareReader(context, lookup, gaps, saver, self._start, self._open)
        self._questions = ShareQuestions(log, self.memberships, saver, self._start, self._open)

    @property
    def is_idle(self) -> bool:
        """Tell whether this gateway has no membership in any group."""
        return not self.memberships

    def shards(self) -> set[int]:
        """Return the shards of the groups that this gateway has a membership in."""
        return {group_shard(group, self._log.shards) for group in self.memberships}

    # Members come and go

    def subscribe(
        self, routes: Sequence[Route], on_entered: Callable[[RouteRequest], None]
    ) -> None:
        """Count a member more for each filter, as `Routes.subscribe`, once its membership may join.

        The caller gets the outcome in the same turn of the loop: the subscription counts at once.
        """
        self._enter(routes, lambda: on_entered(self._routes.subscribe(routes)))

    def announce(self, routes: Sequence[Route], on_entered: Callable[[RouteRequest], None]) -> None:
        """Count a member more for each filter, as `Routes.announce`, once its membership can."""
        self._enter(routes, lambda: on_entered(self._routes.announce(routes)))

    def _enter(self, routes: Sequence[Route], enter: Callable[[], None]) -> None:
        shared = [route for route in routes if route.is_shared]
        for route in shared:
            membership = self._membership(GroupKey(route.tenant, route.topic_filter))
            membership.members += 1
            membership.unwanted.clear()
        self._enter_when_joined(shared, enter)

    def unsubscribe(self, route: Route) -> None:
        """Count one member less; the last one keeps the route until the group can do without."""
        membership = self.memberships.get(GroupKey(route.tenant, route.topic_filter))
        if membership is None or not route.is_shared:
            self._routes.unsubscribe(route)
            return
        membership.members -= 1
        membership.touch()
        if membership.members:
            self._routes.unsubscribe(route)
        else:
            membership.holds_route = True
            membership.unwanted.set()

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        assert self._tasks is not None, "no client can subscribe before `run`"
        return self._tasks.create_task(work)

    def _membership(self, group: GroupKey) -> ShareMembership:
        membership = self.memberships.get(group)
        if membership is None:
            membership = self.memberships[group] = ShareMembership(
                self._context,
                self._subscriptions,
                self._delivered,
                group,
                self._changed,
                self._reader.read,
            )
            if membership.route in self._routes.of_earlier_run:
                # Messages by that route go to its settler.
                membership.from_delivery = NOT_KNOWN
            membership.task = self._start(self._run_membership(membership))
        return membership

    def _enter_when_joined(self, shared: list[Route], enter: Callable[[], None]) -> None:
        """Let members in when all their memberships have joined; else they wait for the next."""
        memberships = [
            self.memberships[GroupKey(route.tenant, route.topic_filter)] for route in shared
        ]
        for membership in memberships:
            if not membership.is_joined:
                membership.pending.append((shared, enter))
                return
        held = [membership for membership in memberships if membership.holds_route]
        for membership in held:
            membership.holds_route = False
        enter()
        for membership in held:
            self._routes.unsubscribe(membership.route)

    # Messages

    def add_copy(
        self,
        copies: list[Copy[Any]],
        group: GroupKey,
        topic_name: str,
        publisher: str,
        partition: int,
        offset: int,
    ) -> None:
        """Add the copy of the member that gets a message that the router gave to this gateway."""
        membership = self.memberships.get(group)
        if membership is None:
            return  # of an earlier run, as every route has its membership: its settler has this too
        if self._delivered.next <= membership.from_delivery or not membership.receive(
            partition, offset
        ):
            return
        copy = membership.copy(topic_name, publisher, (partition, offset))
        copies.append(copy or Copy(membership, MESSAGE_QOS, True, (), group.topic_filter))

    async def missed(self, settler: ShareSettler) -> MissedDeliveries:
        """Return what tells which messages the router has given this gateway by now.

        Args:
            settler: Reads that from the log, when the deliveries themselves are gone.

        Raises:
            LogError: The log does not answer.
        """
        counting = self._counting()
        return await settler.missed(
            [one.group for one in counting], earliest(*(one.known for one in counting))
        )

    def go_on_behind(self, missed: MissedDeliveries, since_ms: int) -> bool:
        """Have members get messages whose deliveries are gone; call it before marks move.

        Args:
            missed: What tells of them.
            since_ms: When it was noticed.

        Returns:
            False: More groups count by now: nothing was done, ask again.
        """
        counting = self._counting()
        if not missed.groups.issuperset(one.group for one in counting):
            return False
        for membership in counting:
            membership.miss(missed.routes, missed.ends, since_ms)
            self._reader.read(membership)
        return True

    def _counting(self) -> list[ShareMembership]:
        """Return memberships that may be given messages which no other membership reads."""
        return [
            one
            for one in self.memberships.values()
            if one.standing.starts is not None and one.standing.state is not MembershipState.LEFT
        ]

    def pass_on(self, tenant: str, left: Iterable[OutgoingMessage]) -> None:
        """Give others of the group messages that a member has left."""
        self._redelivery.pass_on(tenant, left)

    async def pass_on_stored(self, key: Key, progress: ProgressRecord) -> None:
        """Give others of the groups messages that the session of an absent client leaves.

        Raises:
            LogError: The log has not taken it.
        """
        await self._redelivery.pass_on_stored(key, progress)

    def member_moved(self, sender: Sender) -> None:
        """Give a member messages that wait for it in its groups, if it has room now."""
        for group in sender.groups or ():
            membership = self.memberships.get(group)
            if membership is not None:
                membership.member_moved(sender)

    def after_saved(
        self,
        tenant: str,
        shared_filter: str,
        proceed: Callable[[], None],
        member: GroupMember | None = None,
    ) -> None:
        """Call back, in the order of the calls, when the log has a membership's present state.

        The log has the member's messages in flight before that.
        """
        membership = self.memberships.get(GroupKey(tenant, shared_filter))
        self._saver.after_saved(membership, proceed, member)

    # Messages of the owner of a shard

    def told(self, value: dict[str, Any]) -> None:
        """Take a message of the owner of a group's shard to a membership.

        Raises:
            InvalidRecord: A member is missing.
        """
        try:
            group = GroupKey(value["tenant"], value["filter"])
            membership = self.memberships.get(group)
            if (
                membership is None
                or membership.standing.membership_id != value["part"]
                or value["incarnation"] != self._context.me.incarnation
            ):
                return  # it has gone
            _TOLD[value["do"]](self, membership, value)
        except (KeyError, TypeError, ValueError) as exc:
            raise InvalidRecord(f"a control record of a share group is malformed: {exc!r}") from exc

    def _begin(self, membership: ShareMembership, value: dict[str, Any]) -> None:
        standing = membership.standing
        if standing.state is MembershipState.JOINING and standing.starts is None:
            membership.answer(JoinStart(value["starts"], value["given"], value["since"]))

    def _go(self, membership: ShareMembership, _value: dict[str, Any]) -> None:
        if membership.standing.state is MembershipState.LEAVING:
            membership.answer(None)

    def _take_over(self, membership: ShareMembership, value: dict[str, Any]) -> None:
        left = decode_membership(value["left"], membership.group, _dump(value["record"]))
        if membership.standing.take_over(left):
            logger.info(
                "share membership taken over",
                extra={"fields": {"filter": membership.group.topic_filter, "from": left.gateway}},
            )
            self._saver.after_saved(membership, partial(self._end_taking, membership), None)

    def _end_taking(self, membership: ShareMembership) -> None:
        membership.standing.taking -= 1
        if membership.standing.state is MembershipState.LIVE:
            self._open(membership)

    def _note_taken_over(self, membership: ShareMembership, value: dict[str, Any]) -> None:
        membership.standing.forget_taken_over(value["parts"])
        membership.touch()

    def _kept(self, membership: ShareMembership, value: dict[str, Any]) -> None:
        self._questions.kept(membership, value["asks"])

    # One membership, from its first member to its last

    async def _run_membership(self, membership: ShareMembership) -> None:
        await self._runner.run(membership)
        self._end(membership)

    def _end(self, membership: ShareMembership) -> None:
        """Forget a membership; members that came while it left have a new one."""
        del self.memberships[membership.group]
        self._changed.pop(membership, None)
        self._ended.set()
        if membership.members:
            self._succeed(membership)

    def _succeed(self, membership: ShareMembership) -> ShareMembership:
        """Give the members of a membership that is over a new one."""
        fresh = self._membership(membership.group)
        fresh.members, fresh.pending = membership.members, membership.pending
        return fresh

    def _open(self, membership: ShareMembership) -> None:
        """Give the members live and waiting messages."""
        if membership.is_ended:
            return
        self._reader.read(membership)
        membership.is_open = not (membership.is_reading or self._questions.is_asking)
        membership.hand_out()

    async def run(self) -> None:
        """Run the memberships of this gateway until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            await asyncio.Event().wait()

    # Time passes

    def save_all(self) -> bool:
        """Write changed memberships.

        Returns:
            Whether the log takes all of them. Records after that can rely on them.
        """
        now = self._context.loop.time()
        are_written = True
        for membership in list(self._changed):
            if membership.standing.state is MembershipState.LEFT or membership.standing.is_lost:
                del self._changed[membership]
            elif membership.standing.starts is not None:
                # Else it is the first of a group: messages that it has taken over are not here yet.
                are_written &= now >= membership.due_at and self._saver.save(membership)
        return are_written

    def after_all_saved(self, proceed: Callable[[], None]) -> None:
        """Call back when the log has the memberships as they were last written."""
        self._log.after_memberships(proceed)

    def suspend(self) -> None:
        """Give nothing out until it is known which memberships are still this gateway's."""
        self._questions.ask(is_running=self._tasks is not None)

    def confirmed(self) -> None:
        """Run waiting reports of the log, as far as this gateway's memberships are known."""
        self._log.confirmed()

    def _lose(self, membership: ShareMembership, value: dict[str, Any]) -> None:
        """Begin again: another gateway took this one for dead, and others have its messages."""
        logger.warning(
            "this gateway's membership in a share group was settled by another gateway",
            extra={"fields": {"filter": membership.group.topic_filter}},
        )
        membership.standing.is_lost = True
        self._log.lose_membership(membership.standing.membership_id, membership.group)
        membership.is_open = False
        record = value.get("record")
        membership.give_up(
            None
            if record is None
            else decode_membership(value["part"], membership.group, _dump(record))
        )
        assert membership.task is not None
        membership.task.cancel()
        del self.memberships[membership.group]
        self._changed.pop(membership, None)
        fresh = self._succeed(membership)
        fresh.holds_route = membership.holds_route
        self._routes.note_withdrawn(membership.route)
        # Messages given to the lost membership, and read only now, are with others.
        fresh.from_delivery = NOT_KNOWN
        self._questions.look()

    async def close(self) -> None:
        """Leave all groups, if that is soon done; the owners settle the other memberships."""
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                while self.memberships:
                    self._ended.clear()
                    await self._ended.wait()
        except TimeoutError:
            for membership in self.memberships.values():
                self._saver.save(membership)


def _dump(value: Any) -> bytes:
    return json.dumps(value).encode()


_TOLD: Final[dict[str, Callable[[ShareGroups, ShareMembership, dict[str, Any]], None]]] = {
    BEGIN: ShareGroups._begin,
    GO: ShareGroups._go,
    TAKE_OVER: ShareGroups._take_over,
    TAKEN_OVER: ShareGroups._note_taken_over,
    KEPT: ShareGroups._kept,
    LOST: ShareGroups._lose,
}
