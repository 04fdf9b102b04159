"""Activations are signed: code that runs in Spark's JVM comes from the rule language alone.

An activation holds Spark SQL. Others who can write the log topic of rules could have
any expression run with it. So each has a header with a code of authentication (RFC 2104), made
with a key that router and lake alone have; one without it, or with another, is not put in force
(`Signature.java`).
"""

import hashlib
import hmac
from pathlib import Path
from typing import Final

from mqlake.durable import write_durably
from mqlake.records.rule_facts import read_fact
from mqlake.records.rules import HEADER_MAC, Kind
from mqlake.records.versions import Headers
from streaming.jvm.vocabulary import KEY_OPTION
from streaming.log.checkpoints import checkpoints
from streaming.log.sources import client_config
from streaming.settings.spark import StreamingSettings

_NOTE: Final = "rules-signed"


def rules_client_config(settings: StreamingSettings) -> dict[str, str]:
    """Return how those who follow the rules reach the log, and by which key they know them."""
    key = settings.rules_key
    ours = {} if key is None else {KEY_OPTION: key.get_secret_value()}
    return client_config(settings) | ours


class Signatures:
    """Signs records of `mqlake.rules`, and tells which are ours.

    Args:
        key: Secret key of router and lake.
        note: Remembers that all activations of the log are signed with it. Without that they are of
            a version that did not sign, or of another key, and count once: they are signed then.
    """

    def __init__(self, key: str, note: Path) -> None:
        self._key = key.encode()
        self._note = note

    @classmethod
    def of(cls, settings: StreamingSettings) -> "Signatures | None":
        """Return those of an application; None when it has no key and signs nothing."""
        key = settings.rules_key
        note = checkpoints(settings.data_dir) / _NOTE
        return None if key is None else cls(key.get_secret_value(), note)

    @property
    def is_first(self) -> bool:
        """Tell whether unsigned activations count."""
        try:
            return self._note.read_text(encoding="ascii") != self._mark()
        except FileNotFoundError:
            return True

    def note_signed(self) -> None:
        """Let nothing count from now on that is not signed.

        Raises:
            OSError: It cannot be written.
        """
        if self.is_first:
            write_durably(self._note, self._mark().encode(), mode=0o600)

    def headers(self, key: bytes, value: bytes | None) -> Headers:
        """Return the headers of a record; only an activation has one."""
        return [(HEADER_MAC, self._code(key, value))] if value and _is_activation(key) else []

    def is_ours(self, key: bytes, value: bytes | None, headers: Headers) -> bool:
        """Tell whether a record may count; one that puts nothing in force may."""
        if not value or not _is_activation(key):
            return True
        return hmac.compare_digest(dict(headers).get(HEADER_MAC, b""), self._code(key, value))

    def _code(self, key: bytes, value: bytes) -> bytes:
        return hmac.digest(self._key, len(key).to_bytes(4) + key + value, "sha256")

    def _mark(self) -> str:
        return hashlib.sha256(b"signed with " + self._key).hexdigest()


def _is_activation(key: bytes) -> bool:
    fact = read_fact(key, None)
    return fact is not None and fact.kind is Kind.ACTIVATION
