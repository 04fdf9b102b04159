"""Which gateways are there: what each last said of itself in `mqlake.gateways`.

Only the time since the last word counts, by our own clock: clocks of machines differ.
"""

import json
import threading
from dataclasses import dataclass
from typing import Any, Final

from mqlake.clock import Clock
from mqlake.errors import InvalidRecord

DEAD_SECONDS: Final = 3.0
"""A gateway that has not been heard of for so long is dead; the other gateways think the same."""


@dataclass(frozen=True, slots=True)
class Presence:
    """The last word of a gateway."""

    name: str
    said: dict[str, Any]
    at_ms: int
    """When it said so, by its own clock."""
    is_alive: bool


class Gateways:
    """The gateways that have not left in an orderly way; safe to use from any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._words: dict[str, tuple[dict[str, Any], int, float]] = {}

    def forget(self) -> None:
        """Begin anew."""
        with self._lock:
            self._words.clear()

    def receive(self, key: bytes, value: bytes | None, *, is_old: bool) -> None:
        """Take a record.

        Args:
            key: Name of the gateway.
            value: What it says; None: it has left.
            is_old: It was in the log already: how old it is only the gateway's clock can say.

        Raises:
            InvalidRecord: It is of another form.
        """
        name = key.decode(errors="replace")
        if value is None:
            with self._lock:
                self._words.pop(name, None)
            return
        try:
            said = json.loads(value)
            at_ms = int(said["at"])
        except (ValueError, KeyError, TypeError) as exc:
            raise InvalidRecord(f"gateway record is of another form: {exc}") from exc
        heard_at = self._clock.monotonic()
        if is_old:
            heard_at -= max(0.0, (self._clock.now_ms() - at_ms) / 1000)
        with self._lock:
            self._words[name] = (said, at_ms, heard_at)

    def all(self) -> list[Presence]:
        """Return them by name."""
        now = self._clock.monotonic()
        with self._lock:
            words = sorted(self._words.items())
        return [
            Presence(name, said, at_ms, is_alive=now - heard_at < DEAD_SECONDS)
            for name, (said, at_ms, heard_at) in words
        ]

    def get(self, name: str) -> Presence | None:
        return next((one for one in self.all() if one.name == name), None)
