"""Outcomes of a step of a login."""

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, NamedTuple, Protocol

from ingest.protocol.reason_codes import ConnackReasonCode
from mqlake.rights.grants import NO_GRANTS, Grants
from mqlake.security.credentials import PasswordVerifier


@dataclass(frozen=True, slots=True)
class Accepted:
    """The client is let in, as the user that it names or has proved to be."""

    username: str | None
    """In the form SASLprep gives it; None for a client without a name."""
    data: bytes | None = None
    """The server's last authentication data, by which the client can check the server."""
    is_verified: bool = True
    """It has shown that this is its name. Else it only says so."""
    ends_at: float | None = None
    """When that is over, and with it its connection, in seconds UTC; None: never."""
    grants: Grants = NO_GRANTS
    """Roles and rules that its login has brought along."""
    tenant: str | None = None
    """By a token; "" where it names none. None: its login was asked for by the tenant's name."""
    token_id: str | None = None
    """Claim jti of the token by which it has shown that; None: by none, or one without."""
    verifier: PasswordVerifier | None = field(default=None, compare=False, repr=False)
    """Verifier of the credentials file that has shown that; None: something else has."""


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


class Next(Enum):
    """Nothing is known of the client; the next authenticator is asked."""

    NEXT = auto()


NEXT: Final = Next.NEXT

ANONYMOUS: Final = Refused(ConnackReasonCode.NOT_AUTHORIZED, "anonymous clients are not let in")
WRONG_PASSWORD: Final = Refused(
    ConnackReasonCode.BAD_USER_NAME_OR_PASSWORD, "unknown user or wrong password"
)
TOO_MANY_FAILURES: Final = Refused(
    ConnackReasonCode.CONNECTION_RATE_EXCEEDED, "too many failed logins from its address"
)
NO_SUCH_METHOD: Final = Refused(
    ConnackReasonCode.BAD_AUTHENTICATION_METHOD, "no such authentication method"
)
TOO_MANY_CHECKS: Final = Refused(ConnackReasonCode.SERVER_BUSY, "too many passwords to check")
TOO_MANY_AT_ONCE: Final = Refused(
    ConnackReasonCode.SERVER_BUSY, "too many logins at once from its address"
)

Verdict = Accepted | Refused
Outcome = Accepted | Challenge | Refused


class Attempt(NamedTuple):
    """Identity and credentials by a CONNECT."""

    username: str | None
    password: bytes | None
    client_id: str
    address: str
    """The peer's, without its port; empty where there is none."""
    protocol_level: int
    user_prefix: str = ""
    """Prefix of the names of its tenant's users."""


class AuthenticationExchange(Protocol):
    """The server's side of an authentication method, for one login."""

    def start(self, data: bytes | None) -> Outcome:
        """Begin with the client's first data; None when it has sent none yet."""
        ...

    def step(self, data: bytes) -> Outcome:
        """Take the client's next data; after Accepted or Refused the exchange is over."""
        ...
