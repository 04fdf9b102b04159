"""Messages that a dead holder of a session may have sent: they go out with DUP.

The log knows a sent message (`out` of the progress) soon after it was sent. QoS 1 messages sent
after the holder's last record only the client knows, if they have come at all; the gateway that
takes the session over sends them again [MQTT5-4.4.0-1] [MQTT311-4.4.0-1], and then with DUP
[MQTT5-3.3.1-1] [MQTT311-3.3.1-1]. A holder runs `max_repeated_messages` ahead of its records at
most, and sends the messages of a partition in their order: so they are among the first messages of
each partition that were in the log when it was settled. QoS 2 is in the log before it is sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class MaybeSent:
    """Those of one session.

    Args:
        before: Per partition of `mqlake.inbound` the first offset that the dead holder cannot have
            had.
        at_most: How many messages of a partition it can have sent.
    """

    __slots__ = ("_left", "before")

    def __init__(self, before: Sequence[int], at_most: int) -> None:
        self.before = before
        self._left = [at_most] * len(before)

    def take(self, partition: int, offset: int) -> bool:
        """Tell whether a message that is sent now is one of them; one in no partition is none.

        Asked once for each message, in their order.
        """
        if not 0 <= partition < len(self.before) or offset >= self.before[partition]:
            return False
        self._left[partition] -= 1
        return self._left[partition] >= 0
