"""Messages that sites hand over to each other for a share group, one way each.

The site that takes such a message appends it to its log, for that group alone: its router gives it
to a member, or to the next neighbour. A site that has neither says so, after it has said its
present interest; the sender then appends the message to its own log again, behind ways that do
without that neighbour. Either way the record names the position that the message was handed over
from, so it is taken once.
"""

from __future__ import annotations

from functools import partial as bind
from typing import TYPE_CHECKING

from ingest.federation.envelope import InvalidEnvelope
from ingest.federation.sites.interest.group_names import to_local
from ingest.federation.sites.streams.inlet import InletVerdict, stream_of
from ingest.federation.sites.streams.log_messages import of_publish, to_group_record
from ingest.federation.sites.streams.streams import MOST_GAPS
from mqlake.errors import LogError
from mqlake.records.messages import INBOUND

if TYPE_CHECKING:
    from collections.abc import Callable

    from ingest.federation.envelope import SiteMessage
    from ingest.federation.prefixes import Prefixes
    from ingest.federation.settings import FederationSettings
    from ingest.federation.sites.group_routes import GroupRoutes
    from ingest.federation.sites.interest.groups import SiteGroups
    from ingest.federation.sites.links.connection import SiteConnection
    from ingest.federation.sites.links.link import SiteLink
    from ingest.federation.sites.spreading import Spreading
    from ingest.federation.sites.streams.inlet import Inlet
    from ingest.federation.sites.streams.log_messages import Carried
    from ingest.federation.sites.streams.streams import StreamKey
    from ingest.protocol.packets import Publish
    from mqlake.log.contract import LogWriter


class Handing:
    """All messages for share groups that one site takes, or is given back.

    Args:
        settings: Settings of the process.
        prefixes: Names of topics in the federation.
        writer: Writer of the site's log.
        inlet: Returns the inlet: messages that this site has had.
        groups: Share groups, with the sites that have members.
        routes: The ways of this site.
        spreading: Tells others the interest of this site.
        on_failure: Called when the log has not taken a message.
    """

    def __init__(
        self,
        settings: FederationSettings,
        prefixes: Prefixes,
        writer: LogWriter,
        inlet: Callable[[], Inlet],
        groups: SiteGroups,
        routes: GroupRoutes,
        spreading: Spreading,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._site = settings.host.id
        self._tenant = settings.tenant
        self._prefix = settings.control_prefix
        self._hop_limit = settings.hop_limit
        self._prefixes = prefixes
        self._writer = writer
        self._inlet = inlet
        self._groups = groups
        self._routes = routes
        self._spreading = spreading
        self._on_failure = on_failure
        # A number that is given back stays a gap, and those on their way into the log make some.
        self._most_gaps = MOST_GAPS + settings.max_inflight
        self._begun: set[tuple[int, StreamKey]] = set()
        """By neighbour, streams of which its connection has brought something."""

    def close(self, site: int) -> None:
        """Hear that a connection has ended: the next one begins with the first unsettled number."""
        self._begun = {one for one in self._begun if one[0] != site}

    def take(self, link: SiteLink, connection: SiteConnection, publish: Publish) -> None:
        """Take a message that a neighbour hands over, or give it back.

        Raises:
            InvalidEnvelope: It is none.
        """
        carried = of_publish(publish, prefix=self._prefix)
        origin, inlet = carried.handed, self._inlet()
        if origin is None or origin.site != link.site:
            raise InvalidEnvelope(f"a message is handed over from {origin!r} by site {link.site}")
        acknowledge = bind(link.acknowledge, connection, publish)
        if not link.may_bring(carried.message.topic):
            inlet.counters.refused += 1
            acknowledge()
            return
        named = origin.named()
        key = stream_of(named)
        if (link.site, key) not in self._begun:
            # In the order of the neighbour's delivery topic: what is below is settled there.
            self._begun.add((link.site, key))
            inlet.close(key, named.sequence - 1)
        if not inlet.streams.has_room(key, named.after, self._most_gaps):
            connection.close(
                f"more than {self._most_gaps} ranges of {origin.group} were given back:"
                " the next connection tells which of them do not come again"
            )
            return
        if not inlet.has_had(named) and not self._groups.has_receiver(origin.group, link.site):
            self._spreading.spread()
            connection.give_back(publish.packet_id)
            return
        verdict = inlet.take(named, acknowledge)
        if verdict is InletVerdict.DUPLICATE:
            acknowledge()
        elif verdict is InletVerdict.NEW:
            inlet.counters.for_groups += 1
            carried.sender = link.site
            self._append(carried)

    def take_back(self, publish: Publish, acknowledge: Callable[[], None]) -> None:
        """Take a message back that a neighbour has no member for any more.

        Args:
            publish: As it was sent.
            acknowledge: Called when this site's log has it again.
        """
        carried = of_publish(publish, prefix=self._prefix)
        assert carried.handed is not None
        # The one that it names as before it went to this neighbour: others had those between.
        carried.handed = carried.handed._replace(after=carried.handed.sequence - 1)
        inlet = self._inlet()
        self._routes.update()
        is_over = carried.message.hops + 1 >= self._hop_limit
        if is_over or not self._groups.has_receiver(carried.handed.group):
            inlet.counters.unclaimed += 1
            acknowledge()
            return
        verdict = inlet.take(carried.handed.named(), acknowledge)
        if verdict is InletVerdict.DUPLICATE:
            acknowledge()
        elif verdict is InletVerdict.NEW:
            carried.sender = self._site
            self._routes.when_known(bind(self._append, carried))

    def _append(self, carried: Carried) -> None:
        carried.message.hops += 1
        origin = carried.handed
        assert origin is not None
        self._routes.put_in_force(self._spreading.groups_end)
        topic = self._prefixes.to_local(carried.message.topic)
        group = to_local(origin.group, self._prefixes)
        key, value, headers = to_group_record(carried, self._tenant, topic, group)
        appended = bind(self._appended, origin.named())
        try:
            self._writer.append(INBOUND, key, value, headers, appended)
        except LogError as exc:
            self._on_failure(exc)

    def _appended(
        self, named: SiteMessage, partition: int, offset: int, error: LogError | None
    ) -> None:
        if error is not None:
            self._on_failure(error)
        else:
            inlet = self._inlet()
            inlet.appended(named, partition, offset)
            stream = inlet.streams.get(stream_of(named))
            is_given_back = named.key.origin == ~self._site
            # The lowest of them are settled. One that is not may go twice, but none is lost.
            while is_given_back and stream is not None and len(stream) > MOST_GAPS:
                stream.reopen_lowest()
