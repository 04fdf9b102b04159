"""A page may let a name of its own lead to this machine: the API does not answer to it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mqlake.security.addresses import names_this_machine
from tests.api.conftest import AUTHORIZED, Api, memory_api

OIDC = {
    "issuer": "https://id.example.org",
    "client_id": "mqlake",
    "client_secret": "s",
    "public_url": "https://mqlake.example.org",
}


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with memory_api(tmp_path_factory.mktemp("named"), host_names=("mqlake",)) as api:
        yield api


def asked(api: Api, host: str, path: str = "/session") -> int:
    return int(api.request("GET", path, {**AUTHORIZED, "Host": host}).status_code)


@pytest.mark.parametrize(
    ("host", "is_known"),
    [
        ("127.0.0.1:8080", True),
        ("[::1]:8080", True),
        ("localhost", True),
        ("LOCALHOST:1", True),
        ("192.0.2.7", True),
        ("mqlake", True),
        ("MQlake.:8080", True),
        ("", True),
        ("evil.example", False),
        ("evil.example:8080", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("mqlake.evil.example", False),
        ("[nothing", False),
    ],
)
def test_who_asks_by_anothers_name_is_not_answered(
    named: Api, host: str, *, is_known: bool
) -> None:
    assert names_this_machine(host, {"mqlake"}) == is_known
    if host:
        assert asked(named, host) == (200 if is_known else 421)
        assert asked(named, host, "/live") == (200 if is_known else 421), "nor without a login"


@pytest.mark.parametrize(
    ("settings", "is_checked"),
    [
        ({}, True),
        ({"host": "localhost"}, True),
        ({"host": "::1"}, True),
        ({"host": "0.0.0.0"}, False),
        ({"trusted_proxies": "127.0.0.1"}, False),
        ({"host_names": ("*",)}, False),
    ],
)
def test_names_are_checked_where_nobody_else_does(
    tmp_path: Path, settings: dict[str, Any], *, is_checked: bool
) -> None:
    with memory_api(tmp_path, **{"host_names": (), **settings}) as api:
        assert asked(api, "other.example") == (421 if is_checked else 200)


def test_the_name_that_browsers_come_back_to_is_its_own(tmp_path: Path) -> None:
    with memory_api(tmp_path, oidc=OIDC, host_names=()) as api:
        assert asked(api, "mqlake.example.org") == 200
        assert asked(api, "id.example.org") == 421
