"""Authentication of callers, and limits on how often each may ask."""

from dataclasses import dataclass
from typing import Final

from api.access.callers import Caller, Callers
from api.access.limits import RateLimiter
from mqlake.clock import Clock

FAILURES_PER_SECOND: Final = 1.0
FAILURES_BURST: Final = 60.0
"""Failures of one address that are allowed at once: a program with an old token makes many."""
LOGINS_PER_SECOND: Final = 0.1
LOGINS_BURST: Final = 10.0
"""Failed ones, of one name at one address; of one address five times as many."""
_ADDRESS_FACTOR: Final = 5


@dataclass(frozen=True, slots=True)
class ApiAuthenticator:
    """All that authentication of a caller needs."""

    callers: Callers
    requests: RateLimiter
    """Rates of callers, by name."""
    failures: RateLimiter
    """Rates of wrong tokens, by address."""
    logins: RateLimiter
    """Rates of wrong passwords, by name and address."""
    login_addresses: RateLimiter

    @classmethod
    def make(
        cls, callers: Callers, clock: Clock, *, requests_per_second: float, burst: float
    ) -> "ApiAuthenticator":
        return cls(
            callers,
            RateLimiter(clock, per_second=requests_per_second, burst=burst),
            RateLimiter(clock, per_second=FAILURES_PER_SECOND, burst=FAILURES_BURST),
            RateLimiter(clock, per_second=LOGINS_PER_SECOND, burst=LOGINS_BURST),
            RateLimiter(
                clock,
                per_second=LOGINS_PER_SECOND * _ADDRESS_FACTOR,
                burst=LOGINS_BURST * _ADDRESS_FACTOR,
            ),
        )

    def identify(self, token: str | None, cookie: str | None) -> Caller | None:
        """Return the caller: by the token if there is one, else by the cookie; None: unknown.

        Raises:
            OperationalError: The keys cannot be looked up yet.
        """
        if token is not None:
            return self.callers.by_token(token)
        return None if cookie is None else self.callers.by_session(cookie)
