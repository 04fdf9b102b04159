"""The mesh of one federated filter, as one site sees it: who is the core, who sends to whom.

The protocol is that of Spohn and of Ribas and Spohn (J. Computer Science 18(7), 2022): a site
with local subscribers that knows no core becomes one. A core announces itself every
`core_announcement_interval`; the announcement is flooded and counts the hops, so each site learns
who the core is and which neighbours are nearest to it: at most `redundancy` of them, all at the
same distance, are its *parents*. A site with local subscribers, or with children, is a member: it
answers each announcement to its parents, which thereby have it as a *child*. A message goes to
parents and children, but not back. So a publication from outside the mesh climbs to the core over
all parents, and from any place in the mesh it floods the mesh.

Of two cores the one with the lower identifier stays. The other one, and all who followed it, take
the announcement that deposes it like any other.

When the published protocol waits for three announcements that do not come, this one also looks:

- A site that loses its last parent is an *orphan*. It floods a search; the core answers it by an
  announcement with a new sequence. Neighbours answer with the core that they know, and a parent
  that has heard the core as lately and is as near is taken at once. Nothing else is: a neighbour
  that is farther away may have its way through this site.
- When no answer comes within `core_patience`, the core is taken for dead, and the orphan floods
  that. All who have heard no later announcement of that core drop it; a core that hears of its own
  death announces itself again. The announcements up to that one are *buried*: they may still be on
  their way, and would otherwise bring it back.
- A core elected after that `replaces` the old one: a site that comes later and still believes in
  the old one follows, whichever identifier is lower.
- A core without subscribers stays one while it has children, then it resigns and says so. A member
  that leaves says so too.

`TRANSITIONS` is the whole automaton; `docs/federation.md` draws it from here. The causes of an
event are in the methods, its effects in `_ENTERED`.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Protocol

from ingest.federation.packets import Announcement, Core, CoreSearch, Membership, Word

EARLIER_SECONDS: Final = 1.0
"""Less than that may be a difference of clocks."""


class MeshState(Enum):
    """State of a site in a mesh."""

    UNKNOWN = "unknown"
    """It knows no core."""
    CORE = "core"
    OUTSIDE = "outside"
    """It knows core and parents; messages go to these, none come from them."""
    MEMBER = "member"
    """As outside, and it is a child of its parents."""
    ORPHAN = "orphan"
    """It knows a core and no way there."""


class MeshEvent(Enum):
    """Event of a mesh."""

    NEEDED = "needed"
    """There are local subscribers or children (without a core: local subscribers)."""
    IDLE = "idle"
    """There are neither."""
    ELECTED = "elected"
    """The announcement of another core that is better, or replaces, or is the only one."""
    RENEWED = "renewed"
    """An announcement of the same core: a later one, or over a shorter way, or over a way again."""
    STRANDED = "stranded"
    """The last parent is gone."""
    LOST = "lost"
    """The core was silent for three intervals, or not found, or has resigned."""


TRANSITIONS: Final[dict[MeshState, dict[MeshEvent, MeshState]]] = {
    MeshState.UNKNOWN: {
        MeshEvent.NEEDED: MeshState.CORE,
        MeshEvent.ELECTED: MeshState.OUTSIDE,
    },
    MeshState.CORE: {
        MeshEvent.IDLE: MeshState.UNKNOWN,
        MeshEvent.ELECTED: MeshState.OUTSIDE,
    },
    MeshState.OUTSIDE: {
        MeshEvent.NEEDED: MeshState.MEMBER,
        MeshEvent.ELECTED: MeshState.OUTSIDE,
        MeshEvent.RENEWED: MeshState.OUTSIDE,
        MeshEvent.STRANDED: MeshState.ORPHAN,
        MeshEvent.LOST: MeshState.UNKNOWN,
    },
    MeshState.MEMBER: {
        MeshEvent.IDLE: MeshState.OUTSIDE,
        MeshEvent.ELECTED: MeshState.OUTSIDE,
        MeshEvent.RENEWED: MeshState.MEMBER,
        MeshEvent.STRANDED: MeshState.ORPHAN,
        MeshEvent.LOST: MeshState.UNKNOWN,
    },
    MeshState.ORPHAN: {
        MeshEvent.ELECTED: MeshState.OUTSIDE,
        MeshEvent.RENEWED: MeshState.OUTSIDE,
        MeshEvent.LOST: MeshState.UNKNOWN,
    },
}
"""State -> event -> next state; an event that is not listed changes nothing."""

FOLLOWING: Final = frozenset({MeshState.OUTSIDE, MeshState.MEMBER, MeshState.ORPHAN})
"""The states in which another site is the core."""


@dataclass(frozen=True, slots=True)
class Timing:
    """How long things take, in seconds of the site's own clock."""

    core_announcement_interval: float = 10.0
    core_patience: float = 2.0
    least_announcement_interval: float = 0.5
    """Searches make a core announce itself no more often than this."""

    @property
    def core_validity(self) -> float:
        return 3 * self.core_announcement_interval


class Out(Protocol):
    """Takes the words of a mesh."""

    def say(self, neighbour: int, word: Word) -> None:
        """Tell one neighbour."""
        ...

    def flood(self, word: Word, *, but: int | None = None) -> None:
        """Tell all neighbours that are there, but one."""
        ...

    def edges_changed(self, mesh: "Mesh", neighbour: int) -> None:
        """Hear that a neighbour has become a parent or a child."""
        ...


@dataclass(slots=True, eq=False)
class Mesh:
    """One filter's mesh at one site."""

    site: int
    epoch: int
    topic_filter: str
    redundancy: int
    timing: Timing
    known_since: float
    """Since when messages of this filter are wanted by any site that this one has heard of."""

    state: MeshState = MeshState.UNKNOWN
    is_wanted: bool = False
    """There are local subscribers."""
    core: Core | None = None
    distance: int = 0
    parents: list[int] = field(default_factory=list)
    # Invariant: sorted, at most `redundancy`, all as near to the core as `distance` says.
    children: dict[int, float] = field(default_factory=dict)
    """Neighbour -> until when."""
    replaces: Core | None = None
    """As a core, or following one: the core that it has replaced."""
    heard_at: float = 0.0
    announced_at: float = float("-inf")
    orphan_since: float = 0.0
    answered: dict[int, float] = field(default_factory=dict)
    """Neighbour -> when it last heard from here of a better core."""
    searched: tuple[int, int, int] | None = None
    """The core and sequence of the last search that was passed on."""
    buried: dict[int, tuple[tuple[int, int], float]] = field(default_factory=dict)
    """Site -> its last announcement that does not count any more, and until when that is known."""
    next_sequence: int = 1

    # Queries.

    def targets(self) -> Collection[int]:
        """Return where messages go, the neighbour they come from not left out."""
        if self.state in FOLLOWING:
            return {*self.parents, *self.children}
        return self.children.keys()

    @property
    def is_over(self) -> bool:
        """Tell whether nothing here is worth remembering."""
        return self.state is MeshState.UNKNOWN and not self.is_wanted and not self.buried

    # Events.

    def want(self, out: Out, now: float, *, is_wanted: bool) -> None:
        """Hear whether there are local subscribers."""
        self.is_wanted = is_wanted
        self._settle(out, now)

    def hear_announcement(self, sender: int, told: Announcement, out: Out, now: float) -> None:
        """Take a neighbour's word of a core."""
        core = told.core
        if core.site == self.site:
            self._hear_of_itself(sender, told, out, now)
            return
        buried = self.buried.get(core.site)
        if buried is not None and core.age <= buried[0]:
            return
        if told.has_resigned:
            self._hear_loss(sender, told, out, now)
            return
        distance = told.distance + 1
        mine = self.core
        if mine is None or self._is_better(told, mine):
            if told.replaces is not None:
                self._bury(told.replaces, now)
            self._follow(sender, told, distance, out, now)
            self.children.clear()
            self._happen(MeshEvent.ELECTED, out, now)
            out.edges_changed(self, sender)
            out.flood(self._announcement(now), but=sender)
        elif core.site != mine.site:
            if self._is_replaced(told, mine) and self._may_announce(now):
                self.announce(out, now)
            else:
                self._answer(sender, out, now)
        elif core.age > mine.age or (core.age == mine.age and distance < self.distance):
            is_new = sender not in self.parents
            self._follow(sender, told, distance, out, now)
            self._happen(MeshEvent.RENEWED, out, now)
            if is_new:
                out.edges_changed(self, sender)
            out.flood(self._announcement(now), but=sender)
        elif core.age == mine.age and distance == self.distance:
            self._add_parent(sender, out, now)
        self._settle(out, now)

    def hear_membership(self, sender: int, told: Membership, out: Out, now: float) -> None:
        """Take or lose a child."""
        if told.has_left:
            self.children.pop(sender, None)
        elif self.core is not None and self.core[:2] == (told.core_site, told.core_epoch):
            is_new = sender not in self.children
            self.children[sender] = now + self.timing.core_validity
            if is_new:
                out.edges_changed(self, sender)
            self._hear_wanted(told.wanted_ms, out, now)
        else:
            self._answer(sender, out, now)
        self._settle(out, now)

    def hear_search(self, sender: int, told: CoreSearch, out: Out, now: float) -> None:
        """Help a neighbour that has lost its way to a core."""
        core = self.core
        if core is None:
            return
        if core.site != told.core.site or core.age > told.core.age:
            self._tell(sender, out, now)
        elif self.state is MeshState.CORE:
            if self._may_announce(now):
                self.announce(out, now)
            else:
                self._tell(sender, out, now)
        else:
            if self.state is not MeshState.ORPHAN and sender not in self.parents:
                self._tell(sender, out, now)
            search = (core.site, *told.core.age)
            if self.searched != search:
                self.searched = search
                out.flood(told, but=sender)

    def lose_neighbour(self, neighbour: int, out: Out, now: float) -> None:
        """Hear that a neighbour is not there any more."""
        self.children.pop(neighbour, None)
        self.answered.pop(neighbour, None)
        if neighbour in self.parents:
            self.parents.remove(neighbour)
            if not self.parents:
                self._happen(MeshEvent.STRANDED, out, now)
        self._settle(out, now)

    def greet(self, neighbour: int, out: Out, now: float) -> None:
        """Tell a neighbour that has come of the core."""
        if self.state is not MeshState.ORPHAN and self.core is not None:
            self._tell(neighbour, out, now)

    def sweep(self, out: Out, now: float) -> None:
        """Do work that is due by time; about once a second."""
        for child, until in list(self.children.items()):
            if until <= now:
                del self.children[child]
        for site, (_, until) in list(self.buried.items()):
            if until <= now:
                del self.buried[site]
        if self.state in FOLLOWING and now - self.heard_at >= self.timing.core_validity:
            self._lose_core(out, now)
        elif (
            self.state is MeshState.ORPHAN and now - self.orphan_since >= self.timing.core_patience
        ):
            assert self.core is not None
            out.flood(Announcement(self.topic_filter, self.core, 0, has_resigned=True))
            self._lose_core(out, now)
        self._settle(out, now)
        if (
            self.state is MeshState.CORE
            and now - self.announced_at >= self.timing.core_announcement_interval
        ):
            self.announce(out, now)

    def announce(self, out: Out, now: float) -> None:
        """As the core, tell everybody."""
        assert self.core is not None
        self.core = Core(self.site, self.epoch, self.next_sequence)
        self.next_sequence += 1
        self.announced_at = now
        out.flood(self._announcement(now))

    # How it is done.

    def _happen(self, event: MeshEvent, out: Out, now: float) -> None:
        """Enter the state that the table says, with its effects."""
        before = self.state
        after = TRANSITIONS[before].get(event)
        if after is None:
            return
        self.state = after
        _ENTERED[after](self, event, out, now)

    def _settle(self, out: Out, now: float) -> None:
        """Take the state that subscribers and children ask for."""
        if self.is_wanted or (self.children and self.state is not MeshState.UNKNOWN):
            self._happen(MeshEvent.NEEDED, out, now)
        else:
            self._happen(MeshEvent.IDLE, out, now)

    def _is_better(self, told: Announcement, mine: Core) -> bool:
        core = told.core
        if core.site == mine.site:
            return False
        if self.state is not MeshState.CORE and self._is_replaced(told, mine):
            return True
        return core.site < mine.site

    def _is_replaced(self, told: Announcement, mine: Core) -> bool:
        replaced = told.replaces
        return replaced is not None and replaced.site == mine.site and mine.age <= replaced.age

    def _may_announce(self, now: float) -> bool:
        rested = now - self.announced_at >= self.timing.least_announcement_interval
        return self.state is MeshState.CORE and rested

    def _follow(self, sender: int, told: Announcement, distance: int, out: Out, now: float) -> None:
        self.core = told.core
        self.replaces = told.replaces
        self.distance = distance
        self.heard_at = now
        self.parents = [sender]
        self._hear_wanted(told.wanted_ms, out, now)

    def _hear_wanted(self, wanted_ms: int, out: Out, now: float) -> None:
        """Hear how long messages have been wanted; a late joiner may have wanted them earlier.

        Then those before are named, too, wherever this comes to.
        """
        since = now - wanted_ms / 1000
        if since < self.known_since - EARLIER_SECONDS:
            for neighbour in {*self.parents, *self.children}:
                out.edges_changed(self, neighbour)
        self.known_since = min(self.known_since, since)

    def _add_parent(self, sender: int, out: Out, now: float) -> None:
        """Take one more parent that is as near to the core; the lowest identifiers stay."""
        if sender in self.parents:
            return
        parents = sorted([*self.parents, sender])
        for left in parents[self.redundancy :]:
            if left != sender:
                out.say(left, self._departure())
        self.parents = parents[: self.redundancy]
        if sender not in self.parents:
            return
        if self.state is MeshState.ORPHAN:
            self._happen(MeshEvent.RENEWED, out, now)
        elif self.state is MeshState.MEMBER:
            out.say(sender, self._membership(now))
        out.edges_changed(self, sender)

    def _hear_of_itself(self, sender: int, told: Announcement, out: Out, now: float) -> None:
        """Take an echo, word of a former run that others still believe in, or of its own death."""
        if self.state is MeshState.CORE:
            assert self.core is not None
            if told.has_resigned and told.core.age >= self.core.age and self._may_announce(now):
                self.announce(out, now)
        elif self.state is not MeshState.UNKNOWN:
            self._answer(sender, out, now)
        elif not told.has_resigned:
            rested = now - self.announced_at >= self.timing.least_announcement_interval
            if rested and told.core.age <= (self.epoch, self.next_sequence):
                self._resign(out, now)

    def _hear_loss(self, sender: int, told: Announcement, out: Out, now: float) -> None:
        """Drop a core that has resigned, or that no site finds."""
        mine = self.core
        if mine is not None and mine.site == told.core.site and mine.age <= told.core.age:
            out.flood(told, but=sender)
            self._bury(told.core, now)
            self._happen(MeshEvent.LOST, out, now)
            self._settle(out, now)

    def _lose_core(self, out: Out, now: float) -> None:
        assert self.core is not None
        self._bury(self.core, now)
        self.replaces = self.core
        self._happen(MeshEvent.LOST, out, now)

    def _resign(self, out: Out, now: float) -> None:
        core = Core(self.site, self.epoch, self.next_sequence)
        self.next_sequence += 1
        self.announced_at = now
        out.flood(Announcement(self.topic_filter, core, 0, has_resigned=True))

    def _bury(self, core: Core, now: float) -> None:
        known = self.buried.get(core.site)
        age = core.age if known is None else max(core.age, known[0])
        self.buried[core.site] = age, now + 2 * self.timing.core_validity

    def _answer(self, sender: int, out: Out, now: float) -> None:
        """Tell a neighbour of a better core than it has, not too often."""
        told_at = self.answered.get(sender, float("-inf"))
        if (
            self.state is MeshState.ORPHAN
            or now - told_at < self.timing.least_announcement_interval
        ):
            return
        self.answered[sender] = now
        self._tell(sender, out, now)

    def _tell(self, neighbour: int, out: Out, now: float) -> None:
        if self.core is not None:
            out.say(neighbour, self._announcement(now))

    def _announcement(self, now: float) -> Announcement:
        assert self.core is not None
        return Announcement(
            self.topic_filter,
            self.core,
            self.distance,
            wanted_ms=self._wanted_ms(now),
            replaces=self.replaces,
        )

    def _membership(self, now: float) -> Membership:
        assert self.core is not None
        return Membership(self.topic_filter, self.core.site, self.core.epoch, self._wanted_ms(now))

    def _departure(self) -> Membership:
        assert self.core is not None
        return Membership(self.topic_filter, self.core.site, self.core.epoch, 0, has_left=True)

    def _wanted_ms(self, now: float) -> int:
        return max(round((now - self.known_since) * 1000), 0)

    # Effects of entering a state.

    def _enter_core(self, _event: MeshEvent, out: Out, now: float) -> None:
        self.core = Core(self.site, self.epoch, self.next_sequence)
        self.distance = 0
        self.announce(out, now)

    def _enter_member(self, _event: MeshEvent, out: Out, now: float) -> None:
        for parent in self.parents:
            out.say(parent, self._membership(now))

    def _enter_outside(self, event: MeshEvent, out: Out, _now: float) -> None:
        if event is MeshEvent.IDLE:
            for parent in self.parents:
                out.say(parent, self._departure())

    def _enter_orphan(self, _event: MeshEvent, out: Out, now: float) -> None:
        assert self.core is not None
        self.orphan_since = now
        self.searched = (self.core.site, *self.core.age)
        out.flood(CoreSearch(self.topic_filter, self.core))

    def _enter_unknown(self, event: MeshEvent, out: Out, now: float) -> None:
        if event is MeshEvent.IDLE:
            self._resign(out, now)
            self.replaces = None
        self.core = None
        self.parents = []
        self.children.clear()
        self.searched = None


_ENTERED: Final = {
    MeshState.UNKNOWN: Mesh._enter_unknown,
    MeshState.CORE: Mesh._enter_core,
    MeshState.OUTSIDE: Mesh._enter_outside,
    MeshState.MEMBER: Mesh._enter_member,
    MeshState.ORPHAN: Mesh._enter_orphan,
}


def diagram() -> Iterator[str]:
    """Yield the lines of the automaton's picture, a Mermaid state diagram."""
    yield "stateDiagram-v2"
    yield f"    [*] --> {MeshState.UNKNOWN.value}"
    for state, events in TRANSITIONS.items():
        for event, after in events.items():
            yield f"    {state.value} --> {after.value}: {event.value}"
