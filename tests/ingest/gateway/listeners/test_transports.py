from typing import Any

import pytest

from ingest.gateway.listeners.transports import certificate_facts


def certificate(*subject: tuple[str, str]) -> dict[str, Any]:
    """Return a certificate as `SSLSocket.getpeercert` has it."""
    return {"subject": tuple((pair,) for pair in subject)}


def test_subject_is_written_most_specific_first() -> None:
    subject = certificate(
        ("countryName", "DE"), ("organizationName", "Press"), ("commonName", "press-7")
    )
    assert certificate_facts(subject) == {
        "client_certificate_subject": "CN=press-7,O=Press,C=DE",
        "client_certificate_common_name": "press-7",
        "client_certificate_fields": [
            ("countryName", "DE"),
            ("organizationName", "Press"),
            ("commonName", "press-7"),
        ],
        "client_certificate_names": None,
        "client_certificate_not_after": None,
    }


def test_names_of_one_part_stand_together() -> None:
    subject = {"subject": ((("commonName", "press-7"), ("emailAddress", "a@b")),)}
    facts = certificate_facts(subject)
    assert facts["client_certificate_subject"] == "CN=press-7+emailAddress=a@b"


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ('a,b+c"d', 'a\\,b\\+c\\"d'),
        ("CN=x;<y>\\", "CN\\=x\\;\\<y\\>\\\\"),
        ("#1", "\\#1"),
        (" a ", "\\ a\\ "),
        (" ", "\\ "),
        ("a\0b", "a\\00b"),
        ("Grün", "Grün"),
    ],
)
def test_what_means_something_in_a_subject_is_escaped(name: str, written: str) -> None:
    facts = certificate_facts(certificate(("commonName", name)))
    assert facts["client_certificate_subject"] == f"CN={written}"
    assert facts["client_certificate_common_name"] == name


def test_of_several_common_names_none_counts() -> None:
    subject = certificate(("commonName", "all presses"), ("commonName", "press-7"))
    assert certificate_facts(subject)["client_certificate_common_name"] is None
    one_part = {"subject": ((("commonName", "press-7"), ("commonName", "press-7")),)}
    assert certificate_facts(one_part)["client_certificate_common_name"] is None


@pytest.mark.parametrize("nothing", [None, {}, {"subject": ()}])
def test_without_a_certificate_there_are_no_names(nothing: dict[str, Any] | None) -> None:
    assert set(certificate_facts(nothing).values()) == {None}
