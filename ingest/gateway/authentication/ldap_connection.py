"""One connection to a directory (LDAP): bind, search, one thing after the other."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from ingest.gateway.authentication.ldap_messages import (
    LdapEntry,
    LdapMessageError,
    LdapResult,
    decode,
    encode_bind,
    encode_search,
    encode_start_tls,
    encode_unbind,
    length_of,
)
from mqlake.security.checked_http import make_ssl_context

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ingest.gateway.settings.authenticators import LdapAuthenticatorSettings

SUCCESS: Final = 0
_ENTRIES: Final = 2
"""Most that a search for one user asks for: with a second one the user is ambiguous."""


class LdapConnection:
    """Asks a directory; every answer is awaited before the next question."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        below: asyncio.StreamWriter | None = None,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._below = below  # of the socket below TLS: if it is collected, that is closed
        self._number = 0

    @classmethod
    async def open(cls, settings: LdapAuthenticatorSettings) -> LdapConnection:
        """Connect.

        Raises:
            OSError: No server is there, or another one than is meant.
            LdapMessageError: With StartTLS: the answer to it is none.
        """
        context = make_ssl_context(settings.ca_certificates) if settings.is_tls else None
        opened = cls(*await asyncio.open_connection(settings.host, settings.port, ssl=context))
        if not settings.start_tls:
            return opened
        try:
            return await opened._start_tls(settings)
        except BaseException:
            opened._writer.transport.abort()
            raise

    async def _start_tls(self, settings: LdapAuthenticatorSettings) -> LdapConnection:
        """Go on in TLS (RFC 4511, 4.14); answers of the server before that are forgotten.

        Raises:
            LdapMessageError: The answer is none.
            OSError: The server does not, or is another one than is meant.
        """
        self._number += 1
        found = await self._ask(encode_start_tls(self._number), is_extended=True)
        if not isinstance(found, LdapResult) or found.code != SUCCESS:
            raise ConnectionRefusedError(f"the server does not start TLS: {found}")
        loop = asyncio.get_running_loop()
        # A reader of its own: bytes that an attacker in between has put behind the answer, in the
        # clear, must not be taken for bytes of TLS.
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        context = make_ssl_context(settings.ca_certificates)
        transport = await loop.start_tls(
            self._writer.transport, protocol, context, server_hostname=settings.host
        )
        if transport is None:
            raise ConnectionResetError("the server has hung up")
        protocol.connection_made(transport)
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        return LdapConnection(reader, writer, below=self._writer)

    async def bind(self, name: bytes, password: bytes) -> int:
        """Log in with a distinguished name; return the result code.

        Raises:
            LdapMessageError: The answer is none.
            OSError: The connection has ended.
        """
        self._number += 1
        found = await self._ask(encode_bind(self._number, name, password))
        if not isinstance(found, LdapResult):
            raise LdapMessageError("an entry in answer to a bind")
        return found.code

    async def search(
        self,
        base: bytes,
        values: Sequence[tuple[str, bytes]],
        wanted: Sequence[str],
        time_limit_seconds: int,
    ) -> tuple[list[LdapEntry], int]:
        """Return the entries below a name that have some values, two at most, and the result code.

        Raises:
            LdapMessageError: The answer is none.
            OSError: The connection has ended.
        """
        self._number += 1
        question = encode_search(
            self._number,
            base,
            values,
            wanted,
            size_limit=_ENTRIES,
            time_limit_seconds=time_limit_seconds,
        )
        entries: list[LdapEntry] = []
        found = await self._ask(question)
        while not isinstance(found, LdapResult):
            entries.append(found)
            if len(entries) > _ENTRIES:
                raise LdapMessageError("more entries than were asked for")
            found = await self._receive()
        return entries, found.code

    def close(self) -> None:
        """Close the connection, without waiting for the server."""
        self._writer.write(encode_unbind(self._number + 1))
        self._writer.transport.abort()

    async def _ask(self, question: bytes, *, is_extended: bool = False) -> LdapResult | LdapEntry:
        self._writer.write(question)
        await self._writer.drain()
        return await self._receive(is_extended=is_extended)

    async def _receive(self, *, is_extended: bool = False) -> LdapResult | LdapEntry:
        while True:
            found = decode(await self._read(), is_extended=is_extended)
            if found is None:
                continue
            if found.number != self._number:
                raise LdapMessageError("an answer to something else")
            return found

    async def _read(self) -> bytes:
        head = b""
        try:
            while (length := length_of(head)) is None:
                head += await self._reader.readexactly(1)
            return head + await self._reader.readexactly(length - len(head))
        except asyncio.IncompleteReadError as exc:
            raise ConnectionResetError("the server has hung up") from exc
