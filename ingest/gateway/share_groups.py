"""Share groups over all gateways: each message to one member, wherever it is, and none forgotten.

A gateway with members of a group has a part in it, which joins, leaves and takes over as the owner
of the group's shard tells it (`ingest.session.share_groups`, `share_membership`). What that decides
is performed by `share_membership.py`; members' messages go through the part (`share_part.py`).
"""

from __future__ import annotations

import asyncio
import json
import logging
from typing import TYPE_CHECKING, Any, Final

from ingest.gateway.share_membership import ShareMembership
from ingest.gateway.share_part import NOT_KNOWN, SharePart
from ingest.gateway.share_questions import ShareQuestions
from ingest.gateway.share_reading import ShareReader
from ingest.gateway.share_redelivery import ShareRedelivery
from ingest.gateway.share_saving import PartSaver
from ingest.session.share_acts import BEGIN, GO, KEPT, LOST, TAKE, TAKEN
from ingest.session.share_membership import JoinStart
from ingest.session.share_parts import GroupKey, PartState, decode_part, group_shard
from ingest.session.subscriptions import Copy
from mqlake.errors import InvalidRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Sequence

    from ingest.gateway.context import Context
    from ingest.gateway.delivered import Delivered
    from ingest.gateway.ends import Ends
    from ingest.gateway.gaps import Gaps
    from ingest.gateway.group_step import GroupMember
    from ingest.gateway.lookup import Lookup
    from ingest.gateway.route_rounds import RouteRequest
    from ingest.gateway.routes import Routes
    from ingest.gateway.sender_context import OutgoingMessage
    from ingest.gateway.sending import Sender
    from ingest.gateway.share_log import ShareLog
    from ingest.session.subscriptions import Subscriptions
    from mqlake.records import Route
    from mqlake.session_records import ProgressRecord
    from mqlake.shard_records import Key

logger = logging.getLogger(__name__)

CLOSE_SECONDS: Final = 2.0
"""How long a gateway that stops tries to leave its groups in order; the owner settles it else."""

MESSAGE_QOS: Final = 2
"""A part takes what comes as it is; the member's subscription says with what QoS it goes on."""


class ShareGroups:
    """The share groups that this gateway has members of.

    Args:
        context: Of the gateway.
        log: Where parts are written.
        routes: Of this gateway.
        subscriptions: Those in force: they know the members.
        delivered: How far this gateway has come.
        ends: Say where deliveries begin that are for a new part.
        lookup: Finds what was given and is not in memory.
        gaps: Reads what a group has missed.
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
        gaps: Gaps,
    ) -> None:
        self._context = context
        self._log = log
        self._routes = routes
        self._subscriptions = subscriptions
        self._delivered = delivered
        self._parts: dict[GroupKey, SharePart] = {}
        # Parts of which the log does not know what they hold now.
        self._changed: dict[SharePart, None] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self._ended = asyncio.Event()
        self._saver = saver = PartSaver(log, context.loop, self._changed)
        self._redelivery = ShareRedelivery(context, log, self._parts)
        self._membership = ShareMembership(
            context, log, routes, ends, saver, self._enter_when_joined, self._open
        )
        self._reader = ShareReader(context, lookup, gaps, saver, self._start, self._open)
        self._questions = ShareQuestions(log, self._parts, saver, self._start, self._open)

    @property
    def is_idle(self) -> bool:
        """Whether this gateway has no part in any group."""
        return not self._parts

    def shards(self) -> set[int]:
        """Return the shards of the groups that this gateway has a part in."""
        return {group_shard(group, self._log.shards) for group in self._parts}

    # Members come and go

    def subscribe(
        self, routes: Sequence[Route], on_entered: Callable[[RouteRequest], None]
    ) -> None:
        """Count one more member for each filter, as `Routes.subscribe`, once its part may join.

        Told in the same turn of the loop what has become of that: the subscription counts at once.
        """
        self._enter(routes, lambda: on_entered(self._routes.subscribe(routes)))

    def announce(self, routes: Sequence[Route], on_entered: Callable[[RouteRequest], None]) -> None:
        """Count one more member for each filter, as `Routes.announce`, once its part may join."""
        self._enter(routes, lambda: on_entered(self._routes.announce(routes)))

    def _enter(self, routes: Sequence[Route], enter: Callable[[], None]) -> None:
        shared = [route for route in routes if route.is_shared]
        for route in shared:
            part = self._part(GroupKey(route.tenant, route.topic_filter))
            part.members += 1
            part.unwanted.clear()
        self._enter_when_joined(shared, enter)

    def unsubscribe(self, route: Route) -> None:
        """Count one member less; the last one's place is kept until the group can do without."""
        part = self._parts.get(GroupKey(route.tenant, route.topic_filter))
        if part is None or not route.is_shared:
            self._routes.unsubscribe(route)
            return
        part.members -= 1
        part.touch()
        if part.members:
            self._routes.unsubscribe(route)
        else:
            part.holds_route = True
            part.unwanted.set()

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        assert self._tasks is not None, "nobody can subscribe before `run`"
        return self._tasks.create_task(work)

    def _part(self, group: GroupKey) -> SharePart:
        part = self._parts.get(group)
        if part is None:
            part = self._parts[group] = SharePart(
                self._context,
                self._subscriptions,
                self._delivered,
                group,
                self._changed,
                self._reader.read,
            )
            if part.route in self._routes.of_earlier_run:
                part.from_delivery = NOT_KNOWN  # what comes by that route is with who settles it
            part.task = self._start(self._run_part(part))
        return part

    def _enter_when_joined(self, shared: list[Route], enter: Callable[[], None]) -> None:
        """Let members in whose parts have joined: all of them, else they wait for the next one."""
        parts = [self._parts[GroupKey(route.tenant, route.topic_filter)] for route in shared]
        for part in parts:
            if not part.is_joined:
                part.pending.append((shared, enter))
                return
        held = [part for part in parts if part.holds_route]
        for part in held:
            part.holds_route = False
        enter()
        for part in held:
            self._routes.unsubscribe(part.route)

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
        """Add the copy of whoever gets a message that the router chose this gateway for."""
        part = self._parts.get(group)
        if part is None:
            return  # of an earlier run, for every route has its part: who settles that has this too
        if self._delivered.next <= part.from_delivery or not part.receive(partition, offset):
            return
        copy = part.copy(topic_name, publisher, (partition, offset))
        copies.append(copy or Copy(part, MESSAGE_QOS, True, (), group.topic_filter))

    def pass_on(self, tenant: str, left: Iterable[OutgoingMessage]) -> None:
        """Give others of the group what a member has left."""
        self._redelivery.pass_on(tenant, left)

    async def pass_on_stored(self, key: Key, progress: ProgressRecord) -> None:
        """Give others of the groups what the session of an absent client leaves.

        Raises:
            LogError: The log has not taken it.
        """
        await self._redelivery.pass_on_stored(key, progress)

    def member_moved(self, sender: Sender) -> None:
        """Give a member what waits for it in its groups, if it has room now."""
        for group in sender.groups or ():
            part = self._parts.get(group)
            if part is not None:
                part.member_moved(sender)

    def after_saved(
        self,
        tenant: str,
        shared_filter: str,
        proceed: Callable[[], None],
        member: GroupMember | None = None,
    ) -> None:
        """Call back, in the order of the calls, when the log knows what a part holds now.

        What the member has in flight is written before that.
        """
        part = self._parts.get(GroupKey(tenant, shared_filter))
        self._saver.after_saved(part, proceed, member)

    # What the owner of a shard tells

    def told(self, value: dict[str, Any]) -> None:
        """Take what the owner of a group's shard tells a part.

        Raises:
            InvalidRecord: A member is missing.
        """
        try:
            group = GroupKey(value["tenant"], value["filter"])
            part = self._parts.get(group)
            if (
                part is None
                or part.part_id != value["part"]
                or value["incarnation"] != self._context.me.incarnation
            ):
                return  # it has gone
            _TOLD[value["do"]](self, part, value)
        except (KeyError, TypeError, ValueError) as exc:
            raise InvalidRecord(f"a share group is told something malformed: {exc!r}") from exc

    def _begin(self, part: SharePart, value: dict[str, Any]) -> None:
        if part.state is PartState.JOINING and part.starts is None:
            part.answer(JoinStart(value["starts"], value["given"], value["since"]))

    def _go(self, part: SharePart, _value: dict[str, Any]) -> None:
        if part.state is PartState.LEAVING:
            part.answer(None)

    def _take(self, part: SharePart, value: dict[str, Any]) -> None:
        left = decode_part(value["left"], part.group, _dump(value["record"]))
        if part.take_over(left):
            logger.info(
                "share part taken over",
                extra={"fields": {"filter": part.group.topic_filter, "from": left.gateway}},
            )
            self._saver.save(part)
            self._reader.read(part)

    def _taken(self, part: SharePart, value: dict[str, Any]) -> None:
        part.forget_taken(value["parts"])
        part.touch()

    def _kept(self, part: SharePart, value: dict[str, Any]) -> None:
        self._questions.kept(part, value["asks"])

    # One part, from its first member to its last

    async def _run_part(self, part: SharePart) -> None:
        await self._membership.run(part)
        self._end(part)

    def _end(self, part: SharePart) -> None:
        """Forget a part; members that came while it left have a new one."""
        del self._parts[part.group]
        self._changed.pop(part, None)
        self._ended.set()
        if part.members:
            self._succeed(part)

    def _succeed(self, part: SharePart) -> SharePart:
        """Give the members of a part that is over a new one."""
        fresh = self._part(part.group)
        fresh.members, fresh.pending = part.members, part.pending
        return fresh

    def _open(self, part: SharePart) -> None:
        """Give the members what comes, and what has waited."""
        if part.is_ended:
            return
        self._reader.read(part)
        part.is_open = not (part.is_reading or self._questions.is_asking)
        part.hand_out()

    async def run(self) -> None:
        """Run the parts of this gateway until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            await asyncio.Event().wait()

    # Time passes

    def save_all(self) -> bool:
        """Write what has changed.

        Returns:
            Whether the log takes all of it. What is written to it after that can rely on it.
        """
        now = self._context.loop.time()
        are_written = True
        for part in list(self._changed):
            if part.state is PartState.LEFT or part.is_lost:
                del self._changed[part]
            elif part.starts is not None:
                # Else it is the first of a group: it has taken over what it does not hold yet.
                are_written &= now >= part.due_at and self._saver.save(part)
        return are_written

    def suspend(self) -> None:
        """Give nothing out until it is known which parts are still this gateway's."""
        self._questions.ask(is_running=self._tasks is not None)

    def confirmed(self) -> None:
        """Go on with what waits for the log, as far as it is known what is this gateway's."""
        self._log.confirmed()

    def _lose(self, part: SharePart, _value: dict[str, Any]) -> None:
        """Begin anew: another gateway took this one for dead, and others have what it held."""
        logger.warning(
            "this gateway's part of a share group was settled by another gateway",
            extra={"fields": {"filter": part.group.topic_filter}},
        )
        part.is_lost = True
        part.is_open = False
        part.give_up()
        assert part.task is not None
        part.task.cancel()
        del self._parts[part.group]
        self._changed.pop(part, None)
        fresh = self._succeed(part)
        fresh.holds_route = part.holds_route
        self._routes.note_withdrawn(part.route)
        # What was given to the lost part, and is read only now, is with others.
        fresh.from_delivery = NOT_KNOWN
        self._questions.look()

    async def close(self) -> None:
        """Leave all groups, if that is soon done; a part that is not is found like a dead one's."""
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                while self._parts:
                    self._ended.clear()
                    await self._ended.wait()
        except TimeoutError:
            for part in self._parts.values():
                self._saver.save(part)


def _dump(value: Any) -> bytes:
    return json.dumps(value).encode()


_TOLD: Final[dict[str, Callable[[ShareGroups, SharePart, dict[str, Any]], None]]] = {
    BEGIN: ShareGroups._begin,
    GO: ShareGroups._go,
    TAKE: ShareGroups._take,
    TAKEN: ShareGroups._taken,
    KEPT: ShareGroups._kept,
    LOST: ShareGroups._lose,
}
