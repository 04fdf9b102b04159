"""The server's side of a SCRAM-SHA-256 exchange (RFC 5802, RFC 7677), without input and output.

client-first `n,,n=user,r=<nonce>` -> server-first `r=<nonces>,s=<salt>,i=<iterations>` ->
client-final `c=biws,r=<nonces>,p=<proof>` -> server-final `v=<signature>`. The client proves that
it knows the password, the server that it knows the verifier; neither tells the other.

Channel binding is not offered: MQTT does not carry it. An unknown user gets a challenge as everyone
does, and learns at its end alone that something was wrong.
"""

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from typing import Final

from ingest.gateway.authentication.outcomes import Accepted, Challenge, Outcome, Refused
from ingest.protocol.reason_codes import ConnackReasonCode
from mqlake.records.tenants import qualified
from mqlake.security.credentials import Credentials, Verifier
from mqlake.security.saslprep import UnpreparableText, prepare

MAX_MESSAGE_BYTES: Final = 8192
"""Largest message of a client; a name of the longest kind fits several times."""

NONCE_BYTES: Final = 18
"""Random bytes of ours in a nonce: as many as in PostgreSQL's; 24 characters of base64."""

_EXTENSIONS: Final = r"(?:,[A-Za-ln-z]=[^,\0]+)*"
"""Ignored, but for `m`: it stands for one that must not be."""
_NONCE: Final = r"[\x21-\x2b\x2d-\x7e]+"

_CLIENT_FIRST: Final = re.compile(
    rf"(?P<header>(?P<binding>[^,]*),(?:a=(?P<authzid>[^,]+))?,)"
    rf"(?P<bare>n=(?P<name>[^,\0]+),r=(?P<nonce>{_NONCE}){_EXTENSIONS})"
)
_CLIENT_FINAL: Final = re.compile(
    rf"(?P<without_proof>c=(?P<header>[A-Za-z0-9+/=]+),r=(?P<nonce>{_NONCE}){_EXTENSIONS})"
    rf",p=(?P<proof>[A-Za-z0-9+/=]+)"
)


class ScramServer:
    """One exchange: `start` with the client's first data, `step` with each further one.

    Args:
        credentials: The users.
        prefix: Prefix of the names of users that may log in; they may leave it out.
        nonce: Our part of the nonce, for a test; a fresh one without it.
    """

    __slots__ = (
        "_bare",
        "_credentials",
        "_first",
        "_header",
        "_nonce",
        "_prefix",
        "_username",
        "_verifier",
    )

    def __init__(
        self, credentials: Credentials, prefix: str = "", *, nonce: str | None = None
    ) -> None:
        self._prefix = prefix
        self._credentials = credentials
        self._nonce = nonce or base64.b64encode(secrets.token_bytes(NONCE_BYTES)).decode()
        self._bare = ""
        self._first = ""
        self._header = ""
        self._username: str
        self._verifier: Verifier | None = None  # from client-first until client-final

    def start(self, data: bytes | None) -> Outcome:
        """Begin; a client that has sent nothing yet is asked for its first message."""
        return self.step(data) if data else Challenge(None)

    def step(self, data: bytes) -> Outcome:
        """Take the client's next message; after Accepted or Refused the exchange is over."""
        try:
            message = data.decode() if len(data) <= MAX_MESSAGE_BYTES else ""
        except UnicodeDecodeError:
            message = ""
        verifier, self._verifier = self._verifier, None
        if verifier is not None:
            return self._process_final(message, verifier)
        if self._first:
            return _refused("the exchange is over")
        return self._process_first(message)

    def _process_first(self, message: str) -> Outcome:
        found = _CLIENT_FIRST.fullmatch(message)
        if found is None:
            return _refused("no client-first message")
        if found["binding"] not in {"n", "y"}:  # y: it could, and sees that we do not offer it
            return _refused("channel binding asked for")
        try:
            name = _unescape(found["name"])
            authzid = _unescape(found["authzid"]) if found["authzid"] else name
            self._username = qualified(self._prefix, prepare(name, "user name"))
        except (ValueError, UnpreparableText):
            return _refused("no user name can be read")
        if authzid != name:
            return _refused("wants to act as another user")
        self._header = found["header"]
        self._bare = found["bare"]
        self._nonce = found["nonce"] + self._nonce
        self._verifier = verifier = self._credentials.scram_verifier_of(self._username)
        salt = base64.b64encode(verifier.salt).decode()
        self._first = f"r={self._nonce},s={salt},i={verifier.iterations}"
        return Challenge(self._first.encode())

    def _process_final(self, message: str, verifier: Verifier) -> Outcome:
        found = _CLIENT_FINAL.fullmatch(message)
        if found is None:
            return _refused("no client-final message")
        if found["header"] != base64.b64encode(self._header.encode()).decode():
            return _refused("channel binding data does not fit")
        if not hmac.compare_digest(found["nonce"], self._nonce):
            return _refused("a nonce of another exchange")
        signed = f"{self._bare},{self._first},{found['without_proof']}".encode()
        signature = hmac.digest(verifier.stored_key, signed, "sha256")
        try:
            proof = base64.b64decode(found["proof"], validate=True)
            client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        except (binascii.Error, ValueError):
            return _refused("a proof that is none")
        stored_key = hashlib.sha256(client_key).digest()
        if not hmac.compare_digest(stored_key, verifier.stored_key):
            return _refused("unknown user or wrong password")
        server_signature = hmac.digest(verifier.server_key, signed, "sha256")
        data = b"v=" + base64.b64encode(server_signature)
        return Accepted(self._username, data, verifier=verifier)


def _unescape(saslname: str) -> str:
    """Undo `=2C` and `=3D`.

    Raises:
        ValueError: At any other equals sign.
    """
    if re.search("=(?!2C|3D)", saslname):
        raise ValueError("an equals sign that escapes nothing")
    return saslname.replace("=2C", ",").replace("=3D", "=")


def _refused(reason: str) -> Refused:
    return Refused(ConnackReasonCode.NOT_AUTHORIZED, reason)
