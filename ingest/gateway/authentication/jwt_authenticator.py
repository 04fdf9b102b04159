"""Tokens as passwords: a token with a trusted signature says which user its bearer is.

The user name of CONNECT says nothing. A password that is no token, or the token of another issuer,
is passed on to the next authenticator; every other one that is not in order is a refusal, with the
same text for all reasons: the reason itself is logged.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from ingest.gateway.authentication.keys import open_keys
from ingest.gateway.authentication.outcomes import NEXT, WRONG_PASSWORD, Next, Verdict
from ingest.gateway.authentication.tokens import TokenRefused, Tokens
from ingest.gateway.authentication.web import BUSY, NO_ANSWER, NoAnswer

if TYPE_CHECKING:
    from ingest.gateway.authentication.outcomes import Attempt
    from ingest.gateway.settings.authenticators import JwtAuthenticatorSettings
    from mqlake.clock import Clock

logger = logging.getLogger(__name__)

MAX_WAITING: Final = 1_000
"""Clients that wait for keys; further ones hear that the server is busy."""


class JwtAuthenticator:
    """Lets in clients that have a token.

    Args:
        name: Name in the settings.
        settings: Which tokens are taken.
        clock: How long keys count; tokens end by the machine's calendar.

    Raises:
        KeysUnusable: A file of keys cannot be used.
    """

    def __init__(self, name: str, settings: JwtAuthenticatorSettings, clock: Clock) -> None:
        self._name = name
        self._tokens = Tokens(settings)
        self._keys = open_keys(name, settings, clock)
        self._waiting = 0

    async def check(self, attempt: Attempt) -> Verdict | Next:
        """Decide on the password of a CONNECT."""
        if attempt.password is None:
            return NEXT
        try:
            header = self._tokens.header(attempt.password)
            if header is None:
                return NEXT
            if self._waiting >= MAX_WAITING:
                return BUSY
            self._waiting += 1
            try:
                keys = await self._keys.of(header.kid)
            finally:
                self._waiting -= 1
            return self._tokens.verify(attempt.password, header, keys)
        except TokenRefused as exc:
            fields = {
                "authenticator": self._name,
                "client_id": attempt.client_id,
                "reason": str(exc),
            }
            logger.info("token refused", extra={"fields": fields})
            return WRONG_PASSWORD
        except NoAnswer:
            return NO_ANSWER

    async def reload(self) -> None:
        """Read the file of keys again.

        Raises:
            KeysUnusable: It cannot be used; the keys stay as they were.
        """
        await self._keys.reload()

    async def close(self) -> None:
        await self._keys.close()
