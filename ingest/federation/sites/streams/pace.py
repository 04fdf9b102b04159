"""How fast messages may cross a link in one direction: pure, in seconds of a clock of the caller.

A rate loses nothing. Messages not sent wait in the log of the site that sends, and those
that a neighbour brings too fast are acknowledged later, so that its window is full and it waits,
too.
"""

from ingest.protocol.packets import Publish
from ingest.session.limits.rates import TokenBucket


class SendingPace:
    """A rate of messages, one of their bytes, or both.

    Args:
        messages_per_second: On average, and as many at once; 0: any number.
        bytes_per_second: Bytes of topics and payloads, on average; 0: any number. The excess of one
            message is owed.

    Attributes:
        free_at: When the next message may cross.
    """

    def __init__(self, messages_per_second: int, bytes_per_second: int) -> None:
        self.free_at = 0.0
        self._messages = _bucket(messages_per_second)
        self._bytes = _bucket(bytes_per_second)

    def note(self, size: int, now: float) -> None:
        """Hear that a message of `size` bytes crosses."""
        if self._messages is not None:
            self.free_at = max(self.free_at, now + self._messages.take(1, now))
        if self._bytes is not None:
            self.free_at = max(self.free_at, now + self._bytes.take(size, now))


def size_of(publish: Publish) -> int:
    """Return the bytes that count: topic and payload."""
    return len(publish.topic_name.encode()) + len(publish.payload)


def _bucket(per_second: int) -> TokenBucket | None:
    return TokenBucket(float(per_second), float(per_second)) if per_second else None
