"""Gaps that no site can fill any more: neighbours say what of a stream they bring no more.

A message may have expired on its way, be too large for a link, or be wanted no longer: the gap that
was left for it at a site behind stays. A site with many gaps asks its neighbours:

    site 3: what of the stream will you still bring?     site 2: nothing up to 480

A neighbour may say so of the numbers below its own lowest gap when its log, as it ended thereafter,
has gone to the asker. A gap of its own does not count when no other neighbour of *its* can fill it,
which it asks them in turn. A message comes to no site twice, so a question names the sites that it
has come through, and none of these counts: no two sites that lack the same wait for each other.

About the stream of a neighbour itself no question is needed: on that link its numbers ascend.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from ingest.federation.sites.interest.interest import Interest
    from ingest.federation.sites.streams.inlet import Inlet
    from ingest.federation.sites.streams.streams import StreamKey

MANY_GAPS: Final = 100
"""A site with more of one stream asks."""
MOST_QUESTIONS: Final = 1_000
"""In one packet, and of one neighbour."""
MOST_ANSWERS: Final = 100_000
"""Remembered; when there are more, all are asked for again."""
EVERYTHING: Final = 2**63 - 1
"""Nothing of the stream comes any more at all."""


class PassingQuestion(NamedTuple):
    """Asks what of a stream may still come, but for what these sites bring."""

    key: StreamKey
    through: tuple[int, ...]
    """Those that have asked for it, the one that asks last; no site twice."""


@dataclass(slots=True)
class _Answer:
    passed: int | None = None
    """Answer that is due when the log has gone to the asker up to `ends`."""
    ends: Mapping[int, int] | None = None
    """Ends of the log after `passed` was found."""


class Passing:
    """Questions of one site and its answers: nothing here knows a connection.

    Args:
        site: This one.
        interest: Interest of all sites: the ways that there are.
    """

    def __init__(self, site: int, interest: Interest) -> None:
        self._site = site
        self._interest = interest
        self._came: dict[tuple[int, StreamKey], int] = {}
        """Last number of a neighbour's own stream that came on this connection."""
        self._heard: dict[tuple[int, PassingQuestion], int] = {}
        """Answers of neighbours."""
        self._owed: dict[tuple[int, PassingQuestion], _Answer] = {}
        """Answers to neighbours."""
        self._needed: set[PassingQuestion] = set()
        """Questions that have to be asked to answer."""
        self._asking: set[PassingQuestion] = set()

    def close(self, neighbour: int) -> None:
        """Hear that a connection has ended: on the next one the same may come again."""
        self._came = {one: last for one, last in self._came.items() if one[0] != neighbour}
        self._heard = {one: last for one, last in self._heard.items() if one[0] != neighbour}
        self._owed = {one: owed for one, owed in self._owed.items() if one[0] != neighbour}

    def came(self, neighbour: int, key: StreamKey, number: int) -> None:
        """Hear that a neighbour has brought a number of its own stream, taken or not."""
        self._came[neighbour, key] = number

    def hear(self, neighbour: int, answers: Mapping[PassingQuestion, int]) -> None:
        """Hear a neighbour's answers; unasked ones are left out."""
        if len(self._heard) > MOST_ANSWERS:
            self._heard.clear()
        for question, number in answers.items():
            if question in self._asking:
                self._heard[neighbour, question] = number

    def ask(self, neighbour: int, questions: Iterable[PassingQuestion]) -> None:
        """Hear questions of a neighbour; it is answered at most `MOST_QUESTIONS` at once."""
        count = sum(one == neighbour for one, _ in self._owed)
        for question in questions:
            if (neighbour, question) not in self._owed and count < MOST_QUESTIONS:
                self._owed[neighbour, question] = _Answer()
                count += 1

    def answers(
        self,
        inlet: Inlet,
        own: Callable[[StreamKey], int],
        ends: Mapping[int, int],
        has_all: Mapping[int, Callable[[Mapping[int, int]], bool]],
    ) -> dict[int, dict[PassingQuestion, int]]:
        """Return the answers that are due, by neighbour. Call it when the end of the log is known.

        Args:
            inlet: Inlet of this site.
            own: Returns the last number of a stream of this site.
            ends: Ends of the log, as of after the call before.
            has_all: By neighbour, tells whether the log has gone to it up to some ends.
        """
        found: dict[int, dict[PassingQuestion, int]] = {}
        for (neighbour, question), answer in list(self._owed.items()):
            if answer.passed is None:
                answer.passed = self._find(inlet, own, question, has_all)
            elif answer.ends is None:
                answer.ends = ends
            if answer.ends is not None and has_all[neighbour](answer.ends):
                del self._owed[neighbour, question]
                found.setdefault(neighbour, {})[question] = answer.passed
        return found

    def settle(self, inlet: Inlet, neighbours: Collection[int]) -> dict[int, list[PassingQuestion]]:
        """Close gaps that no neighbour fills any more; return what to ask each of them."""
        many = {
            PassingQuestion(key, (self._site,))
            for key, one in inlet.streams
            if len(one) > MANY_GAPS and key.origin >= 0
        }
        self._asking, self._needed = many | self._needed, set()
        found: dict[int, list[PassingQuestion]] = {}
        for question in self._asking:
            ways = self._ways(question, neighbours)
            if question in many:
                passed = min((self._up_to(inlet, one, question) for one in ways), default=0)
                inlet.close(question.key, passed)
            for one in ways:
                found.setdefault(one, []).append(question)
        return {one: questions[:MOST_QUESTIONS] for one, questions in found.items()}

    def _find(
        self,
        inlet: Inlet,
        own: Callable[[StreamKey], int],
        question: PassingQuestion,
        neighbours: Collection[int],
    ) -> int:
        """Return up to which number this site brings the asker nothing but what its log has now."""
        key = question.key
        if key.origin == self._site:
            return own(key)
        asked = PassingQuestion(key, (*question.through, self._site))
        ways = self._ways(asked, neighbours)
        passed = min((self._up_to(inlet, one, asked) for one in ways), default=EVERYTHING)
        stream = inlet.streams.get(key)
        if stream is not None:
            # The first gap that one of them may fill; without any all that was had counts.
            opened = (max(first - 1, passed) for first, last in stream.gaps if last > passed)
            passed = next(opened, max(stream.mark, passed))
        if ways:
            self._needed.add(asked)
        return min(passed, inlet.first_pending(key) - 1)

    def _ways(self, question: PassingQuestion, neighbours: Collection[int]) -> set[int]:
        may = self._interest.may_bring(question.key.origin, neighbours)
        return may - set(question.through)

    def _up_to(self, inlet: Inlet, neighbour: int, question: PassingQuestion) -> int:
        """Return up to where a neighbour brings nothing new."""
        key = question.key
        passed = self._heard.get((neighbour, question), 0)
        came, stream = self._came.get((neighbour, key)), inlet.streams.get(key)
        if came is not None and stream is not None:
            # Beyond the mark there may be some that wait for room, and some are not in the log yet.
            passed = max(passed, min(came, stream.mark, inlet.first_pending(key) - 1))
        return passed
