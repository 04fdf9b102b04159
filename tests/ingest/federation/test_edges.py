"""What stands between a site and the federation: prefixes and settings."""

import pytest
from pydantic import ValidationError

from ingest.federation.prefixes import Prefixes
from ingest.federation.settings import FederationSettings, NeighborSettings
from mqlake.errors import SettingsError


def test_the_longest_prefix_counts_and_the_way_back_is_the_same() -> None:
    prefixes = Prefixes([("", "all/"), ("line/", "all/a/"), ("line/x/", "b/")])
    for local, federated in (("line/1", "all/a/1"), ("line/x/1", "b/1"), ("other", "all/other")):
        assert prefixes.to_federated(local) == federated
        assert prefixes.to_local(federated) == local
    assert prefixes.to_local_filters("all/#") == {"all/#", "#", "line/#"}


@pytest.mark.parametrize(
    "pairs", [[("a/", "x/"), ("b/", "x/")], [("a/+/", "x/")], [("a", "x/")], [("$SYS/", "x/")]]
)
def test_prefixes_that_have_no_way_back_are_refused(pairs: list[tuple[str, str]]) -> None:
    with pytest.raises(SettingsError):
        Prefixes(pairs)


@pytest.mark.parametrize("uri", ["host", "http://a", "mqtt://", "mqtt://u:p@host", "mqtt://a/b"])
def test_an_address_that_is_none_is_refused(uri: str) -> None:
    with pytest.raises(ValidationError):
        NeighborSettings(id=1, uri=uri)


@pytest.mark.parametrize("prefix", ["a\nb/", "a\x7f/", "a\0/", "a" * 65_535 + "/"])
def test_a_prefix_stands_in_the_name_of_a_share_group(prefix: str) -> None:
    for pair in ((prefix, "b/"), ("b/", prefix)):
        with pytest.raises(SettingsError, match="setting prefixes"):
            Prefixes([pair])


def test_the_port_of_an_address_follows_from_its_scheme() -> None:
    assert NeighborSettings(id=1, uri="mqtt://a").address == ("a", 1883)
    assert NeighborSettings(id=1, uri="mqtts://a").address == ("a", 8883)
    assert NeighborSettings(id=1, uri="mqtt://a:5").address == ("a", 5)


def test_filters_that_are_none_and_neighbours_twice_are_refused() -> None:
    for filters in (("a/#/b",), ("$SYS/#",)):
        with pytest.raises(ValidationError):
            FederationSettings(filters_out=filters)
    broker = NeighborSettings(id=2, uri="mqtt://a")
    with pytest.raises(ValidationError):
        FederationSettings(neighbors=(broker, broker))
