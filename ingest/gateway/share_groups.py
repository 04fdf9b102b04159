"""Share groups over all gateways: each message to one member, wherever it is, and none forgotten.

A gateway with members of a group has a part in it (`ingest.session.share_parts`). A part joins
before the router hears of its route, and has left when the router gives it nothing more; between
the two everything that the router chose this gateway for is with a member, waits in the part, or
is in the part's record. What a part leaves behind is taken over by another, at once when there is
one, else by the first member that comes: for that a group needs a member whose session is kept.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

from ingest.gateway.drops import DropReason
from ingest.gateway.outbound import LOCAL
from ingest.gateway.share_joining import Joining, take_over
from ingest.gateway.share_part import NOT_KNOWN, SharePart
from ingest.gateway.share_saving import PartSaver
from ingest.gateway.share_settling import ShareSettler
from ingest.session.open_work import OpenWork
from ingest.session.share_parts import (
    GroupKey,
    PartRecord,
    PartState,
    ShareTable,
    key_of_part,
)
from ingest.session.subscriptions import Copy
from mqlake.errors import InvalidRecord, LogError
from mqlake.topics import SHARE_PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Sequence

    from ingest.gateway.routes import RouteRequest
    from ingest.gateway.sending import Outgoing, Sender
    from ingest.gateway.server import Gateway
    from ingest.gateway.share_log import ShareLog
    from mqlake.log.contract import LogAccess
    from mqlake.records import Route
    from mqlake.session_records import ProgressRecord
    from mqlake.shard_records import Key

logger = logging.getLogger(__name__)

RETRY_SECONDS: Final = 0.2
LOOK_SECONDS: Final = 0.25
"""How often it is looked for what others have left behind, when nothing tells earlier."""

SETTLE_AGAIN_SECONDS: Final = 2.0
"""How long parts of a dead gateway rest when the log did not answer for them."""

CLOSE_SECONDS: Final = 2.0
"""How long a gateway that stops tries to leave its groups in order; a later one does it else."""

MESSAGE_QOS: Final = 2
"""A part takes what comes as it is; the member's subscription says with what QoS it goes on."""


class ShareGroups:
    """The share groups that this gateway has members of, and those it cares for.

    Args:
        gateway: Whose members.
        log: Where parts are written; tells of everybody's.
        access: For the deliveries of gateways that have died.
    """

    def __init__(self, gateway: Gateway, log: ShareLog, access: LogAccess) -> None:
        self._gateway = gateway
        self._log = log
        self._table = ShareTable()
        self._parts: dict[GroupKey, SharePart] = {}
        # Parts of which the log does not know what they hold now.
        self._changed: dict[SharePart, None] = {}
        self._settler = ShareSettler(gateway, log, access, self._table)
        self._tasks: asyncio.TaskGroup | None = None
        self._wake = asyncio.Event()
        self._ended = asyncio.Event()
        self._is_suspended = False
        self._saver = PartSaver(log, gateway.loop, self._changed)
        self._joining = Joining(gateway, self._table, self._saver, self._enter_when_joined)

    @property
    def is_idle(self) -> bool:
        """Whether this gateway has no part in any group."""
        return not self._parts

    # Members come and go

    def subscribe(
        self, routes: Sequence[Route], on_entered: Callable[[RouteRequest], None]
    ) -> None:
        """Count one more member for each filter, as `Routes.subscribe`, once its part may join.

        Told in the same turn of the loop what has become of that: the subscription counts at once.
        """
        self._enter(routes, lambda: on_entered(self._gateway.routes.subscribe(routes)))

    def announce(self, routes: Sequence[Route], on_entered: Callable[[RouteRequest], None]) -> None:
        """Count one more member for each filter, as `Routes.announce`, once its part may join."""
        self._enter(routes, lambda: on_entered(self._gateway.routes.announce(routes)))

    def _enter(self, routes: Sequence[Route], enter: Callable[[], None]) -> None:
        shared = [route for route in routes if _is_shared(route)]
        for route in shared:
            part = self._part(GroupKey(route.tenant, route.topic_filter))
            part.members += 1
            part.unwanted.clear()
        self._enter_when_joined(shared, enter)

    def unsubscribe(self, route: Route) -> None:
        """Count one member less; the last one's place is kept until the group can do without."""
        part = self._parts.get(GroupKey(route.tenant, route.topic_filter))
        if part is None or not _is_shared(route):
            self._gateway.routes.unsubscribe(route)
            return
        part.members -= 1
        part.touch()
        if part.members:
            self._gateway.routes.unsubscribe(route)
        else:
            part.holds_route = True
            part.unwanted.set()

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        assert self._tasks is not None, "nobody can subscribe before `run`"
        return self._tasks.create_task(work)

    def _part(self, group: GroupKey) -> SharePart:
        part = self._parts.get(group)
        if part is None:
            part = self._parts[group] = SharePart(self._gateway, group, self._changed, self.read)
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
            self._gateway.routes.unsubscribe(part.route)

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
            # Not of the router: every route of a group has its part.
            self._gateway.drops.add(DropReason.NO_MEMBER, group.tenant, "", topic_name, 0)
            return
        if self._gateway.next_delivery <= part.from_delivery or not part.receive(partition, offset):
            return
        copy = part.copy(topic_name, publisher, (partition, offset))
        copies.append(copy or Copy(part, MESSAGE_QOS, True, (), group.topic_filter))

    def pass_on(self, tenant: str, left: Iterable[Outgoing]) -> None:
        """Give others of the group what a member has left (5.0: 4.8.2)."""
        by_group: dict[GroupKey, list[Outgoing]] = {}
        for outgoing in left:
            by_group.setdefault(GroupKey(tenant, outgoing.shared_filter), []).append(outgoing)
        for group, messages in by_group.items():
            part = self._parts.get(group)
            if part is not None and part.keeps_messages:
                part.take_back(one.message for one in messages)
                part.hand_out()
            else:
                places = [(one.message.partition, one.message.offset) for one in messages]
                self._leave_behind(group, OpenWork(place for place in places if place[0] != LOCAL))

    def pass_on_stored(self, key: Key, progress: ProgressRecord) -> None:
        """Give others of the groups what the session of an absent client leaves.

        QoS 2 is not given to anybody else. [MQTT5-4.8.2-5]
        """
        by_group: dict[GroupKey, OpenWork] = {}
        for one in progress.outgoing:
            shared_filter = progress.shared.get(one.packet_id)
            if shared_filter and one.qos == 1:
                group = GroupKey(key[0], shared_filter)
                by_group.setdefault(group, OpenWork()).add(one.partition, one.offset)
        for group, work in by_group.items():
            self._leave_behind(group, work)

    def _leave_behind(self, group: GroupKey, work: OpenWork) -> None:
        """Leave messages to whichever part takes them: this gateway's own, or one that has left."""
        part = self._parts.get(group)
        if part is not None and part.keeps_messages:
            part.unread.update(work)
            self._saver.save(part)
            self.read(part)
            return
        if not self._is_kept(group):
            return
        part = SharePart(self._gateway, group, self._changed, self.read)
        part.state = PartState.LEFT
        part.unread = work
        self._log.save_part(part.snapshot())

    def member_moved(self, sender: Sender) -> None:
        """Give a member what waits for it in its groups, if it has room now."""
        for group in sender.groups:
            part = self._parts.get(group)
            if part is not None:
                part.member_moved(sender)

    def after_saved(self, tenant: str, shared_filter: str, proceed: Callable[[], None]) -> None:
        """Call back, in the order of the calls, when the log knows what a part holds now."""
        self._saver.after_saved(self._parts.get(GroupKey(tenant, shared_filter)), proceed)

    # The log

    def part_written(self, key: bytes, value: bytes | None, by: str) -> None:
        """Take a record of any part, in the order of the log."""
        try:
            group, part_id = self._table.apply(key, value)
        except InvalidRecord as exc:
            logger.warning("share part ignored", extra={"fields": {"reason": str(exc)}})
            return
        record = self._table.get(group, part_id)
        if record is None or record.state is PartState.LEFT:
            self._wake.set()
        part = self._parts.get(group)
        if part is None:
            return
        if part_id in part.took and value is None:
            part.took.remove(part_id)
        if part_id == part.part_id:
            if by != self._gateway.incarnation:
                if part.state is not PartState.LEFT or value is not None:
                    self._lose(part)
                return
            if record is not None:
                self._echo(part, record)
        if not part.outlook.done() and self._table.get(group, part.part_id) is not None:
            outlook = self._table.outlook(group, part.part_id)
            if outlook is not None:
                part.outlook.set_result(outlook)
        part.changed.set()

    def _echo(self, part: SharePart, record: PartRecord) -> None:
        part.echo(record.number)
        if record.state is PartState.LEAVING and part.awaited is None:
            part.awaited = self._table.others_to_wait_for(part.group, part.part_id)
        for part_id in record.takes:
            if part_id not in part.takes:
                continue
            left = self._table.get(part.group, part_id)
            if left is None or self._table.taker(part.group, part_id) != part.part_id:
                part.takes.remove(part_id)
            elif not part.is_ended:
                part.takes.remove(part_id)
                take_over(part, left)
                self._saver.save(part)
                self.read(part)

    # One part, from its first member to its last

    async def _run_part(self, part: SharePart) -> None:
        while part.from_delivery == NOT_KNOWN:
            try:
                part.from_delivery = await self._gateway.delivery_end(part.route.gateway)
            except LogError:
                await asyncio.sleep(RETRY_SECONDS)
        await self._joining.join(part)
        self._open(part)
        while part.members:
            part.unwanted.clear()
            await part.unwanted.wait()
        await self._joining.leave(part)
        self._end(part)

    def _end(self, part: SharePart) -> None:
        """Forget a part; members that came while it left have a new one."""
        del self._parts[part.group]
        self._wake.set()
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
        self.read(part)
        part.is_open = not (part.is_reading or self._is_suspended)
        part.hand_out()
        self._wake.set()

    # What others have left

    def read(self, part: SharePart) -> None:
        """Read what waits in the log; the members get it before what comes meanwhile."""
        if part.wants_to_read and not part.is_reading and not part.is_ended:
            part.is_reading = True
            part.is_open = False
            self._start(self._read_some(part))

    async def _read_some(self, part: SharePart) -> None:
        has_read_gap = False
        while part.wants_to_read and not part.is_ended:
            try:
                if part.unread:
                    await self._read_unread(part)
                else:
                    gap = part.gaps[0]
                    has_read_gap = True
                    await self._gateway.resumer.read_gap(part, gap.start, gap.end, gap.since_ms)
                    if not part.is_ended:
                        del part.gaps[0]
                        part.end_missed()
            except LogError as error:
                part.was_not_read()
                logger.warning("a share group waits", extra={"fields": {"reason": str(error)}})
                await asyncio.sleep(RETRY_SECONDS)
        # First the log knows that nothing of a gap is left, then members get it: what a session has
        # in flight may be in the part's record, but never in a gap that would be read again.
        while has_read_gap and not (part.is_ended or self._saver.save(part)):  # noqa: ASYNC110
            await asyncio.sleep(RETRY_SECONDS)  # nobody tells
        part.is_reading = False
        self._open(part)

    async def _read_unread(self, part: SharePart) -> None:
        found = await self._gateway.lookup.messages(part.begin_to_read())
        if part.is_ended:
            part.was_not_read()
            return
        missing = part.was_read(found.values())
        if missing:
            self._gateway.drops.add(DropReason.UNREADABLE, part.group.tenant, "", "", 1, missing)

    async def run(self) -> None:
        """Look after parts until cancelled: those of this gateway, and those nobody has."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            tasks.create_task(self._settle())
            while True:
                try:
                    async with asyncio.timeout(LOOK_SECONDS):
                        await self._wake.wait()
                except TimeoutError:
                    pass
                self._wake.clear()
                self._take_what_was_left()
                self._end_groups()

    async def _settle(self) -> None:
        """Look for parts of dead gateways."""
        while True:
            try:
                await self._settler.settle()
            except LogError as error:
                logger.warning("share parts wait", extra={"fields": {"reason": str(error)}})
                await asyncio.sleep(SETTLE_AGAIN_SECONDS)
            await asyncio.sleep(LOOK_SECONDS)

    def _take_what_was_left(self) -> None:
        """Ask for what other parts have left, if this is the first of those that live."""
        peers = self._gateway.peers
        for group in self._table.groups_with_left():
            part = self._parts.get(group)
            if part is None or not part.is_open:
                continue
            left = [
                one.part_id
                for one in self._table.left(group)
                if one.part_id not in part.took
                and one.part_id not in part.takes
                and self._table.taker(group, one.part_id) is None
            ]
            if not left:
                continue
            first = next(
                (
                    one.part_id
                    for one in self._table.live(part.group)
                    if peers.is_alive(one.gateway, one.incarnation)
                ),
                None,
            )
            if first == part.part_id:
                part.takes.extend(left)
                self._saver.save(part)

    def _is_kept(self, group: GroupKey) -> bool:
        """Tell whether a group has, or will have again, a member."""
        return self._table.is_present(group) or self._log.members.has(group)

    def _end_groups(self) -> None:
        """Forget what was left of groups that have no member any more, absent ones included."""
        for group in self._table.groups_with_left():
            if self._is_kept(group):
                continue
            for left in self._table.left(group):
                if not self._gateway.peers.is_ours(left.gateway, left.incarnation):
                    continue
                count = len(left.open)
                if count:
                    self._gateway.drops.add(
                        DropReason.NO_MEMBER, left.group.tenant, "", "", 1, count
                    )
                self._table.apply(key := key_of_part(left.part_id, left.group), None)
                self._log.forget_part(key)

    # Time passes

    def save_all(self) -> bool:
        """Write what has changed.

        Returns:
            Whether the log takes all of it. What is written to it after that can rely on it.
        """
        now = self._gateway.loop.time()
        are_written = True
        for part in list(self._changed):
            if part.state is PartState.LEFT or part.is_lost:
                del self._changed[part]
            elif part.starts is not None:
                # Else it is the first of a group: it has taken over what it does not hold yet.
                are_written &= now >= part.due_at and self._saver.save(part)
        return are_written

    def suspend(self) -> None:
        """Give nothing out until it is known what others have done meanwhile.

        This gateway has not heard itself for so long that it may have been taken for dead.
        """
        if self._is_suspended or self._tasks is None:
            return
        self._is_suspended = True
        for part in self._parts.values():
            part.is_open = False
        self._start(self._resume())

    async def _resume(self) -> None:
        while True:
            try:
                await self._log.catch_up()
                break
            except LogError:
                await asyncio.sleep(RETRY_SECONDS)
        self._is_suspended = False
        for part in list(self._parts.values()):
            self._open(part)

    def _lose(self, part: SharePart) -> None:
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
        fresh = self._succeed(part)
        fresh.holds_route = part.holds_route
        # What was given to the lost part, and is read only now, is with others.
        fresh.from_delivery = NOT_KNOWN
        self._gateway.routes.renew(part.route)

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


def _is_shared(route: Route) -> bool:
    return route.topic_filter.startswith(SHARE_PREFIX)
