from typing import Any

import pytest

from ingest.gateway.authentication.certificates import (
    attributes_of_certificate,
    username_of_certificate,
)
from ingest.gateway.settings.listeners import Identity


class Transport:
    """Knows what the test says of a certificate."""

    def __init__(self, **facts: Any) -> None:
        self._facts = facts

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._facts.get(name.removeprefix("client_certificate_"), default)


NAMES = (
    ("DNS", "a.example"),
    ("email", "ann@example"),
    ("URI", "spiffe://x/a"),
    ("DNS", "b.example"),
)


@pytest.mark.parametrize(
    ("common_name", "username"),
    [
        ("device-7", "device-7"),
        ("Rene\u0301", "Ren\u00e9"),
        ("a\x00b", None),
        ("", None),
        (None, None),
    ],
)
def test_common_name_is_the_user_name(common_name: str | None, username: str | None) -> None:
    transport: Any = Transport(common_name=common_name, names=NAMES)
    assert username_of_certificate(transport, "common_name") == username


@pytest.mark.parametrize(
    ("identity", "username"),
    [
        ("email", "ann@example"),
        ("uri", "spiffe://x/a"),
        ("dns", None),  # there are two: which is meant?
    ],
)
def test_an_alternative_name_is_the_user_name(identity: Identity, username: str | None) -> None:
    transport: Any = Transport(common_name="device-7", names=NAMES)
    assert username_of_certificate(transport, identity) == username


@pytest.mark.parametrize("identity", ["common_name", "dns", "email", "uri"])
def test_without_a_certificate_there_is_no_user(identity: Identity) -> None:
    transport: Any = Transport(common_name=None, names=None)
    assert username_of_certificate(transport, identity) is None


FIELDS = (
    ("countryName", "DE"),
    ("organizationName", "Example"),
    ("organizationalUnitName", "one"),
    ("organizationalUnitName", "two"),
    ("commonName", "device-7"),
)


def test_fields_of_the_subject_are_attributes() -> None:
    transport: Any = Transport(fields=FIELDS, not_after=1)
    assert attributes_of_certificate(transport) == {
        "certificate.organization": "Example",
        "certificate.common_name": "device-7",
    }, "of two units neither is meant"
    for without in (Transport(), Transport(fields=FIELDS), Transport(not_after=1), None):
        shown: Any = without
        assert attributes_of_certificate(shown) == {}, "nothing that nobody has verified"
