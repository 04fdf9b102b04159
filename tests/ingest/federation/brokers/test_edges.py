"""What stands between a broker and the federation: echoes and saved state; how meshes are drawn."""

from pathlib import Path

import pytest

from ingest.federation.brokers.echoes import Echoes
from ingest.federation.brokers.meshes import diagram
from ingest.federation.brokers.saving import SavedState
from mqlake.errors import OperationalError

ROOT = Path(__file__).parents[4]


def test_the_document_draws_the_automaton_as_it_is() -> None:
    drawn = (ROOT / "docs" / "federation.md").read_text(encoding="utf-8")
    assert "```mermaid\n" + "\n".join(diagram()) + "\n```" in drawn


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
