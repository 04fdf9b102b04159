"""What stands between a site and the federation: prefixes, echoes, settings, saved state."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from ingest.federation.echoes import Echoes
from ingest.federation.meshes import diagram
from ingest.federation.prefixes import Prefixes
from ingest.federation.saving import SavedState
from ingest.federation.settings import FederationSettings, NeighborSettings
from mqlake.errors import OperationalError, SettingsError

ROOT = Path(__file__).parents[3]


def test_the_document_draws_the_automaton_as_it_is() -> None:
    drawn = (ROOT / "docs" / "federation.md").read_text(encoding="utf-8")
    assert "```mermaid\n" + "\n".join(diagram()) + "\n```" in drawn


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


def test_of_two_equal_messages_one_is_the_echo() -> None:
    echoes = Echoes(10, 60.0)
    echoes.expect("a", b"x", 0.0)
    assert not echoes.is_echo("a", b"y", 1.0)
    assert echoes.is_echo("a", b"x", 1.0)
    assert not echoes.is_echo("a", b"x", 1.0)


def test_echoes_that_do_not_come_are_forgotten() -> None:
    echoes = Echoes(2, 60.0)
    for payload in (b"1", b"2", b"3"):
        echoes.expect("a", payload, 0.0)
    assert len(echoes) == 2
    assert not echoes.is_echo("a", b"1", 0.0)
    assert not echoes.is_echo("a", b"3", 61.0)
    assert len(echoes) == 0


@pytest.mark.parametrize("uri", ["host", "http://a", "mqtt://", "mqtt://u:p@host", "mqtt://a/b"])
def test_an_address_that_is_none_is_refused(uri: str) -> None:
    with pytest.raises(ValidationError):
        NeighborSettings(id=1, uri=uri)


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


def test_an_epoch_is_higher_than_each_before_though_the_clock_goes_back(tmp_path: Path) -> None:
    def epoch(now_ms: int) -> int:
        state = SavedState(tmp_path / "x" / "y", 1, store_seconds=1, interest_seconds=1)
        try:
            return state.new_epoch(now_ms)
        finally:
            state.close()

    assert [epoch(100), epoch(50), epoch(200)] == [100, 101, 200]


def test_a_file_that_is_no_state_is_named(tmp_path: Path) -> None:
    (tmp_path / "state").write_bytes(b"something else, and longer than a header of SQLite" * 9)
    with pytest.raises(OperationalError, match="state"):
        SavedState(tmp_path / "state", 1, store_seconds=1, interest_seconds=1)
