"""A verified client certificate as the client's identity."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mqlake.saslprep import UnpreparableText, prepare

if TYPE_CHECKING:
    from asyncio import BaseTransport

    from ingest.gateway.listeners.settings import Identity

_ALTERNATIVE_NAMES: Final = {"dns": "DNS", "email": "email", "uri": "URI"}


def username_of_certificate(transport: BaseTransport, identity: Identity) -> str | None:
    """Return the user name that a client's certificate stands for, in the form SASLprep gives it.

    Args:
        transport: Of the client; knows the certificate, if that was verified.
        identity: Which name it is.

    Returns:
        None without a certificate, without such a name, with two of them (either might be meant),
        and with one that cannot be a user's.
    """
    if identity == "common_name":
        names = [transport.get_extra_info("client_certificate_common_name")]
    else:
        found = transport.get_extra_info("client_certificate_names") or ()
        names = [name for kind, name in found if kind == _ALTERNATIVE_NAMES[identity]]
    if len(names) != 1 or names[0] is None:
        return None
    try:
        return prepare(names[0], "name in the certificate")
    except UnpreparableText:
        return None
