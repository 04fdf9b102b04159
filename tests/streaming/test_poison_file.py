"""What an engine that died was about: counted, skipped and forgotten."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from api.log.appending import LogAppender
from cli.app import mqlake
from launcher.doctor.contract import Level, Patient
from launcher.doctor.processes import look_at_poison
from launcher.paths import DataDirectory
from mqlake.errors import OperationalError
from mqlake.records.audit import AUDIT_EVENT
from mqlake.records.messages import EVENTS
from streaming.application.poison_file import (
    MOST_ENTRIES,
    PLACES_FILE,
    Poison,
    PoisonPlace,
    forget_places,
)
from tests.api.test_api import write_state

PLACE = PoisonPlace("default", "r", "i", 3, 17)


def slot(
    name: bytes = b"default/r",
    *,
    active: int = 1,
    partition: int = 3,
    offset: int = 17,
    event: int = 0,
) -> bytes:
    """One thread's place as Java writes it."""
    fields = struct.pack(">iiqiii", active, partition, offset, 2, event, len(name))
    return (fields + name).ljust(256, b"\0")


def die(folder: Path, *slots: bytes) -> Path:
    """Leave what an engine does that dies; return where."""
    places = folder / PLACES_FILE
    places.write_bytes(b"".join(slots))
    return places


def test_a_place_is_skipped_at_the_second_death(tmp_path: Path) -> None:
    poison = Poison(tmp_path)
    die(tmp_path, slot(active=0), slot(), slot(b"", active=0))
    (first,) = poison.take_deaths(tmp_path / PLACES_FILE, 1_000)
    assert (first.place, first.version, first.deaths, first.skipped) == (PLACE, 2, 1, False)
    assert poison.take_deaths(tmp_path / PLACES_FILE, 2_000) == []  # the file is gone
    die(tmp_path, slot(b"t/other", event=1, offset=5), slot())
    other, second = poison.take_deaths(tmp_path / PLACES_FILE, 3_000)
    assert str(other.place) == "t/other e:3:5"
    assert not other.skipped
    assert (second.deaths, second.at_ms, second.skipped) == (2, 3_000, True)
    assert poison.skipped() == [second]


def test_an_engine_that_ends_as_it_should_was_about_nothing(tmp_path: Path) -> None:
    poison = Poison(tmp_path)
    die(tmp_path, slot())
    forget_places(tmp_path / PLACES_FILE)
    forget_places(tmp_path / PLACES_FILE)
    assert poison.take_deaths(tmp_path / PLACES_FILE, 1) == []


@pytest.mark.parametrize(
    "data", [b"", b"x" * 100, b"\xff" * 256, slot(b"no slash"), slot(offset=-1)]
)
def test_what_is_no_place_is_none(tmp_path: Path, data: bytes) -> None:
    poison = Poison(tmp_path)
    die(tmp_path, data)
    assert poison.take_deaths(tmp_path / PLACES_FILE, 1) == []


def test_not_more_is_kept_than_anybody_reads(tmp_path: Path) -> None:
    poison = Poison(tmp_path)
    die(tmp_path, *(slot(offset=offset) for offset in range(MOST_ENTRIES + 5)))
    poison.take_deaths(tmp_path / PLACES_FILE, 1)
    kept = [entry.place.offset for entry in poison.entries()]
    assert kept == list(range(5, MOST_ENTRIES + 5))


def test_a_damaged_file_is_said_to_be(tmp_path: Path) -> None:
    (tmp_path / "poison.json").write_text('{"places": [{}]}')
    with pytest.raises(OperationalError, match=r"poison.json is damaged .* delete it"):
        Poison(tmp_path).entries()
    (finding,) = look_at_poison(Patient(DataDirectory(tmp_path), None))
    assert finding.level is Level.ERROR


def test_an_operator_lists_skips_and_forgets(tmp_path: Path) -> None:
    def run(*words: str) -> str:
        done = CliRunner().invoke(mqlake, ["poison", *words, "--data-dir", str(tmp_path)])
        assert done.exit_code == 0, done.output
        return done.output

    assert "passes over i:3:17" in run("skip", "r", "i:3:17")
    (entry,) = Poison(tmp_path).skipped()
    assert (entry.place, entry.deaths) == (PLACE, 0)
    assert "i:3:17" in run("list")
    (listed,) = json.loads(run("list", "--json"))
    assert (listed["place"]["offset"], listed["buried"]) == (17, True)
    assert "1 places forgotten" in run("forget")
    assert Poison(tmp_path).entries() == []


def test_what_an_operator_changes_is_told_to_the_audit_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[str, str, dict[str, Any]]] = []

    def append(log: LogAppender, topic: str, key: bytes, value: bytes, **_: Any) -> int:
        told.append((log.servers, topic, json.loads(value)))
        return 0

    monkeypatch.setattr(LogAppender, "append", append)
    skip = ["poison", "skip", "r", "i:3:17", "--tenant", "t", "--data-dir", str(tmp_path)]
    done = CliRunner().invoke(mqlake, skip)
    assert "not in the audit log: no system runs" in done.output
    assert told == []
    write_state(tmp_path, healthy=True)
    for command in (skip, ["poison", "forget", "--data-dir", str(tmp_path)]):
        assert "audit" not in CliRunner().invoke(mqlake, command).output
    assert [one[:2] for one in told] == [("127.0.0.1:9092", EVENTS)] * 2
    first, second = (record for _, _, record in told)
    assert (first["event"], first["operation"], first["tenant"]) == (
        AUDIT_EVENT,
        "poison skip",
        "t",
    )
    assert first["caller"].startswith("shell:")
    assert first["asked"] == {"rule": "r", "record": "i:3:17"}
    assert (second["operation"], second["asked"]) == ("poison forget", {"places": 1})


@pytest.mark.parametrize("record", ["i:3", "x:3:4", "i:-1:4", "i:3:a", "i:3:" + "9" * 30, ""])
def test_what_is_no_record_is_not_skipped(record: str) -> None:
    with pytest.raises(OperationalError, match="is no record: expected i:"):
        PoisonPlace.of("default", "r", record)


def test_doctor_tells_of_deaths(tmp_path: Path) -> None:
    poison = Poison(tmp_path)
    patient = Patient(DataDirectory(tmp_path), None)
    (finding,) = look_at_poison(patient)
    assert finding.level is Level.OK
    die(tmp_path, slot())
    poison.take_deaths(tmp_path / PLACES_FILE, 1)
    (finding,) = look_at_poison(patient)
    assert finding.level is Level.WARNING
    assert "bin/mqlake poison skip r i:3:17 --tenant default" in finding.advice
    die(tmp_path, slot())
    poison.take_deaths(tmp_path / PLACES_FILE, 1)
    (finding,) = look_at_poison(patient)
    assert finding.level is Level.ERROR
    assert (
        "ended 2 times while it evaluated rule default/r on the message at i:3:17" in finding.detail
    )
    poison.forget()
    poison.skip(PLACE, 1)
    (finding,) = look_at_poison(patient)
    assert finding.level is Level.WARNING
