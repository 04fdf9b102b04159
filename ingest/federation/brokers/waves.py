"""Asking everybody: a site without the messages asks its own neighbours before it says so.

This is the echo algorithm (Chang, IEEE Trans. Software Eng. 8(4), 1982). A wave begins at the site
that misses something and goes over all links. A site that takes part for the first time remembers
who asked it and asks all its other neighbours; that one of them asks it for the same wave is that
one's answer. When all have answered it answers too. So a wave ends, over any redundant paths, and
its end at the site that began it says that none of those that it reached has the messages.

A site that has them sends them instead of an answer: they go back the way that the wave has come,
and the wave does not end. Nor does it when a neighbour is lost meanwhile: the result is unknown
then, and the site that began it begins another one.

Each wave stands alone. Two sites that miss the same message would otherwise take each other's
question for the answer that there is none.
"""

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, NamedTuple

from ingest.federation.envelope import ChainKey, SiteMessage
from ingest.federation.packets import Want, Wave

OWN: Final = -1
"""Asker of a wave that begins here."""


class WaveEnded(NamedTuple):
    """All whom this site has asked have answered that there is nothing."""

    asker: int
    want: Want


@dataclass(slots=True)
class _Part:
    """This site's part in a wave."""

    asker: int
    want: Want
    awaited: set[int]
    until: float


class Waves:
    """The waves that a site takes part in.

    Args:
        seconds: How long one is remembered.
        most: How many are.
    """

    def __init__(self, *, seconds: float, most: int) -> None:
        self._seconds = seconds
        self._most = most
        self._parts: OrderedDict[Wave, _Part] = OrderedDict()
        self._of_chain: dict[ChainKey, set[Wave]] = {}

    def __len__(self) -> int:
        return len(self._parts)

    def __contains__(self, wave: Wave) -> bool:
        return wave in self._parts

    def join(
        self, wave: Wave, asker: int, want: Want, asked: Collection[int], now: float
    ) -> WaveEnded | None:
        """Take part for the first time, ask all of `asked`; return the end if there are none."""
        self._parts[wave] = part = _Part(asker, want, set(asked), now + self._seconds)
        self._of_chain.setdefault(want.key, set()).add(wave)
        if len(self._parts) > self._most:
            self._forget(next(iter(self._parts)))
        return self._end(part)

    def answer(self, wave: Wave, neighbour: int) -> tuple[bool, WaveEnded | None]:
        """Hear that a neighbour has nothing, or asks for the same wave.

        Returns:
            Whether it was waited for, and the end of the wave if that was the last.
        """
        part = self._parts.get(wave)
        if part is None or neighbour not in part.awaited:
            return False, None
        part.awaited.discard(neighbour)
        return True, self._end(part)

    def askers(self, message: SiteMessage) -> set[int]:
        """Return the neighbours that want a message by a wave."""
        found: set[int] = set()
        for wave in self._of_chain.get(message.key, ()):
            part = self._parts[wave]
            if part.asker != OWN and part.want.after < message.sequence <= part.want.upto:
                found.add(part.asker)
        return found

    def expire(self, now: float) -> None:
        """Forget waves that are too old."""
        while self._parts:
            wave, part = next(iter(self._parts.items()))
            if part.until > now:
                return
            self._forget(wave)

    def _end(self, part: _Part) -> WaveEnded | None:
        return None if part.awaited else WaveEnded(part.asker, part.want)

    def _forget(self, wave: Wave) -> None:
        key = self._parts.pop(wave).want.key
        self._of_chain[key].discard(wave)
        if not self._of_chain[key]:
            del self._of_chain[key]
