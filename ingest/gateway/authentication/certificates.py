"""A verified client certificate as the client's identity."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mqlake.security.saslprep import UnpreparableText, prepare

if TYPE_CHECKING:
    from asyncio import BaseTransport

    from ingest.gateway.settings.listeners import Identity

_ALTERNATIVE_NAMES: Final = {"dns": "DNS", "email": "email", "uri": "URI"}


_SUBJECT_FIELDS: Final = {
    "commonName": "certificate.common_name",
    "organizationName": "certificate.organization",
    "organizationalUnitName": "certificate.organizational_unit",
}
"""Field of a subject -> the attribute that it is (`mqlake.rights.patterns`)."""


def attributes_of_certificate(transport: BaseTransport | None) -> dict[str, str]:
    """Return attributes by a client's verified certificate; a field that is there twice is none.

    Args:
        transport: Transport of the client; behind a proxy it knows no field.
    """
    if transport is None or transport.get_extra_info("client_certificate_not_after") is None:
        return {}
    fields: list[tuple[str, str]] = transport.get_extra_info("client_certificate_fields") or []
    names = [field for field, _ in fields]
    return {
        _SUBJECT_FIELDS[field]: value
        for field, value in fields
        if field in _SUBJECT_FIELDS and names.count(field) == 1
    }


def username_of_certificate(transport: BaseTransport, identity: Identity) -> str | None:
    """Return the user name in a client's certificate, in the form SASLprep gives it.

    Args:
        transport: Transport of the client; knows the certificate, if that was verified.
        identity: Field that has the name.

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
