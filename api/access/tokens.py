"""Secrets of keys and sessions: their form, and how a right one is recognised."""

import base64
import hashlib
import hmac
import secrets
from pathlib import Path
from typing import Final, NamedTuple

from mqlake.errors import OperationalError

KEY_PREFIX: Final = "mqk"
SESSION_PREFIX: Final = "mqs"
"""A leaked secret is found, and recognised, by its beginning."""

_ID_BYTES: Final = 6
_SECRET_BYTES: Final = 32


class Secret(NamedTuple):
    """`<prefix>_<id>_<secret>`: the identifier is no secret, it finds the record."""

    id: str
    secret: str

    def text(self, prefix: str) -> str:
        return f"{prefix}_{self.id}_{self.secret}"

    @property
    def hash(self) -> str:
        return hashlib.sha256(self.secret.encode()).hexdigest()

    def fits(self, known_hash: str) -> bool:
        """Compare in a time that says nothing of how much of it is right."""
        return hmac.compare_digest(self.hash, known_hash)

    @property
    def csrf_token(self) -> str:
        """Token that a page must know and send beside the cookie, which it cannot read.

        It follows from the secret, so it need not be kept; the secret does not follow from it.
        """
        digest = hmac.digest(self.secret.encode(), b"csrf", "sha256")
        return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def new_secret() -> Secret:
    return Secret(secrets.token_hex(_ID_BYTES), secrets.token_urlsafe(_SECRET_BYTES))


def read_secret(text: str, prefix: str) -> Secret | None:
    """Undo `Secret.text`; None for a text of another form."""
    parts = text.split("_", 2)
    if len(parts) != 3 or parts[0] != prefix or not text.isascii():
        return None
    return Secret(parts[1], parts[2])


def read_token(path: Path) -> str:
    """Return the administrator's token.

    Raises:
        OperationalError: The file is missing or empty: without a token no caller could be
            authenticated.
    """
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise OperationalError(f"token_file {path} cannot be read: {exc}") from exc
    if not token:
        raise OperationalError(f"token_file {path} is empty: write a token into it")
    return token
