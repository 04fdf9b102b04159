"""Echoes: messages that a 3.1.1 broker sends back to their publisher.

A 5.0 subscription with No Local never brings a client its own messages [MQTT5-3.8.3-3]; a 3.1.1
subscription does. So each message published at the own broker is expected back once. A client that
publishes the very same in between is not mistaken for long: of two equal messages one is taken for
the echo and one for the client's, whichever comes first.
"""

from collections import Counter, OrderedDict

Echo = tuple[str, bytes]
"""Topic name and payload."""


class Echoes:
    """The messages expected back.

    Args:
        most: How many at most; if a broker sends none back, this bounds what is awaited.
        seconds: How long each is.
    """

    def __init__(self, most: int, seconds: float) -> None:
        self._most = most
        self._seconds = seconds
        self._expected: OrderedDict[int, tuple[float, Echo]] = OrderedDict()
        self._counts: Counter[Echo] = Counter()
        self._number = 0

    def __len__(self) -> int:
        return len(self._expected)

    def expect(self, topic: str, payload: bytes, now: float) -> None:
        """Note that a message was published."""
        self._number += 1
        self._expected[self._number] = now, (topic, payload)
        self._counts[topic, payload] += 1
        while len(self._expected) > self._most or self._is_stale(now):
            _, (_, echo) = self._expected.popitem(last=False)
            self._take(echo)

    def is_echo(self, topic: str, payload: bytes, now: float) -> bool:
        """Tell whether a message that came is one; it is then expected no more."""
        while self._is_stale(now):
            _, (_, stale) = self._expected.popitem(last=False)
            self._take(stale)
        echo = topic, payload
        if not self._counts.get(echo):
            return False
        number = next(n for n, (_, one) in self._expected.items() if one == echo)
        del self._expected[number]
        self._take(echo)
        return True

    def _is_stale(self, now: float) -> bool:
        if not self._expected:
            return False
        at, _ = next(iter(self._expected.values()))
        return now - at > self._seconds

    def _take(self, echo: Echo) -> None:
        self._counts[echo] -= 1
        if not self._counts[echo]:
            del self._counts[echo]
