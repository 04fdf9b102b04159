"""What a step of a login comes to."""

from dataclasses import dataclass
from typing import Protocol

from ingest.protocol.reason_codes import ConnackReasonCode


@dataclass(frozen=True, slots=True)
class Accepted:
    """The client is who it says."""

    username: str | None
    """In the form SASLprep gives it; None for a client without a name."""
    data: bytes | None = None
    """The server's last authentication data, by which the client can check the server."""


@dataclass(frozen=True, slots=True)
class Challenge:
    """The client has to answer before anything is decided."""

    data: bytes | None


@dataclass(frozen=True, slots=True)
class Refused:
    """The client may not in, or not stay."""

    reason_code: ConnackReasonCode
    reason: str
    """For the log and for the client: the same whether a user is unknown or a password wrong."""


Verdict = Accepted | Refused
Outcome = Accepted | Challenge | Refused


class Exchange(Protocol):
    """The server's side of an authentication method, for one login."""

    def start(self, data: bytes | None) -> Outcome:
        """Begin with the client's first data; None when it has sent none yet."""
        ...

    def step(self, data: bytes) -> Outcome:
        """Take the client's next data; after Accepted or Refused the exchange is over."""
        ...
