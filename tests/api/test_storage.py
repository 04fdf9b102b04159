"""How much of each table is whose, by Delta's statistics and by a column of the files."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from api.tenants.storage import KEPT_SECONDS, Storage, StoredPart
from mqlake.clock import ManualClock
from mqlake.errors import OperationalError
from mqlake.records.references import reference_table
from mqlake.records.rule_tables import rule_table

LONG = "a" * 40
"""Longer than what statistics have of it."""
HOT = rule_table(LONG, "rule_hot")


def write(folder: Path, table: str, tenants: Sequence[str]) -> int:
    """Append a file; return its bytes."""
    path = folder / table
    rows = {"tenant": list(tenants), "x": list(range(len(tenants)))}
    write_deltalake(str(path), pa.table(rows), mode="append")
    return int(DeltaTable(str(path)).get_add_actions(flatten=True).column("size_bytes")[0].as_py())


def test_rows_and_bytes_are_divided_by_tenant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    read_table = pq.read_table

    def reading(path: Path, columns: list[str]) -> pa.Table:
        read.append(path.parent.name)
        assert columns == ["tenant"]
        return read_table(path, columns=columns)

    monkeypatch.setattr(pq, "read_table", reading)
    clock = ManualClock()
    storage = Storage(tmp_path, list, clock)
    assert storage.all() == {}, "no table yet"
    own = write(tmp_path, "messages", ["acme"] * 10)
    shared = write(tmp_path, "messages", ["acme", "beta", "beta", "beta"])
    rule = write(tmp_path, HOT, [LONG, LONG])
    assert storage.all() == {}, "what was found is good for a while"
    clock.advance(KEPT_SECONDS)
    found = storage.all()
    assert found["acme"] == {"messages": StoredPart(11, own + round(shared / 4))}
    assert found["beta"] == {"messages": StoredPart(3, round(shared * 3 / 4))}
    assert found[LONG] == {"rule_hot": StoredPart(2, rule)}
    assert sorted(read) == ["messages", HOT], "of a file of one tenant statistics say it"
    write(tmp_path, "retained", ["beta"])
    clock.advance(KEPT_SECONDS)
    assert storage.all()["beta"]["retained"].rows == 1
    assert len(read) == 2, "no file is read twice"


def test_files_that_are_no_more_count_no_more(tmp_path: Path) -> None:
    clock = ManualClock()
    storage = Storage(tmp_path, list, clock)
    write(tmp_path, "messages", ["acme", "beta"])
    assert set(storage.all()) == {"acme", "beta"}
    DeltaTable(str(tmp_path / "messages")).delete("tenant = 'acme'")
    clock.advance(KEPT_SECONDS)
    assert set(storage.all()) == {"beta"}


def test_a_table_that_cannot_be_read_is_no_empty_one(tmp_path: Path) -> None:
    write(tmp_path, "messages", ["acme", "beta"])
    for file in (tmp_path / "messages").glob("*.parquet"):
        file.write_bytes(b"no file of Parquet")
    with pytest.raises(OperationalError, match="table messages cannot be read"):
        Storage(tmp_path, list, ManualClock()).all()


def test_the_audit_log_is_no_tenants(tmp_path: Path) -> None:
    write(tmp_path, "audit_log", ["acme"])
    assert Storage(tmp_path, list, ManualClock()).all() == {}


def test_reference_tables_are_of_one_tenant(tmp_path: Path) -> None:
    names = [("acme", "sites"), (LONG, "sites"), ("beta", "gone")]
    for tenant, reference in names[:2]:
        path = tmp_path / reference_table(tenant, reference)
        write_deltalake(str(path), pa.table({"site": ["a", "b"]}))
    clock = ManualClock()
    storage = Storage(tmp_path, lambda: names, clock)
    found = storage.all()
    assert {tenant: one["reference_sites"].rows for tenant, one in found.items()} == {
        "acme": 2,
        LONG: 2,
    }
    assert all(one["reference_sites"].size > 0 for one in found.values())
    shutil.rmtree(tmp_path / reference_table("acme", "sites"))
    clock.advance(KEPT_SECONDS)
    assert set(storage.all()) == {LONG}
