"""`bin/mqlake references` against an API whose tables are written here, without Spark."""

import json
import shutil
from pathlib import Path
from typing import Any

import click
import pytest
from arro3.core import Array, DataType, Field, Schema, Table
from click.testing import CliRunner, Result
from deltalake import CommitProperties, DeltaTable, write_deltalake

from api.log.following import Followed
from cli.app import mqlake
from mqlake.errors import MqlakeError
from mqlake.records.messages import RULES
from mqlake.records.references import (
    UPLOADS,
    ReferenceKey,
    ReferenceState,
    decode_reference_request,
    encode_reference_state,
    reference_key,
    reference_table_path,
)
from tests.api.conftest import Api, api
from tests.mqlake.test_api_client import served

__all__ = ["api", "served"]  # fixtures of others

TYPES = {"STRING": DataType.utf8(), "BIGINT": DataType.int64(), "DOUBLE": DataType.float64()}


@pytest.fixture
def writing(served: Api, monkeypatch: pytest.MonkeyPatch) -> Api:
    """An API whose requests are carried out while it waits for that."""
    await_answer = served.references.await_answer

    def carry_out(tenant: str, reference: str, number: int, seconds: float) -> Any:
        write(served, number)
        return await_answer(tenant, reference, number, seconds)

    monkeypatch.setattr(served.references, "await_answer", carry_out)
    return served


def write(api: Api, number: int) -> None:
    """Do what the lake does with the newest request."""
    request = decode_reference_request(api.log.records[-1].value or b"")
    assert request.number == number
    path = reference_table_path(api.data_dir, request.tenant, request.reference)
    state = ReferenceState(request.tenant, request.reference, number, "deleted")
    if request.kind == "delete":
        shutil.rmtree(path)
    else:
        said: dict[str, Any]
        if request.kind == "put":
            file = api.data_dir / UPLOADS / str(request.upload)
            rows = [json.loads(line) for line in file.read_text().splitlines()]
            said = {name: getattr(request, name) for name in ("columns", "key", "rows", "bytes")}
        else:
            commits = DeltaTable(str(path)).history()
            commit = next(one for one in commits if one["version"] == request.version)
            said = json.loads(commit["userMetadata"])
            rows = [{"id": "m1", "limit": 7}]
        names = ("number", "kind", "at", "description", "version")
        said |= {name: getattr(request, name) for name in names}
        fields = [Field(name, TYPES[type_], nullable=True) for name, type_ in said["columns"]]
        arrays = [Array([row[one.name] for row in rows], one) for one in fields]
        write_deltalake(
            str(path),
            Table.from_arrays(arrays, schema=Schema(fields)),
            mode="overwrite",
            schema_mode="overwrite",
            commit_properties=CommitProperties({"userMetadata": json.dumps(said)}),
        )
        state = ReferenceState(
            request.tenant,
            request.reference,
            number,
            "ready",
            version=DeltaTable(str(path)).version(),
            columns=tuple((name, type_) for name, type_ in said["columns"]),
            key=tuple(said["key"]),
            rows=len(rows),
            at=request.at,
        )
    key = reference_key(ReferenceKey("state", request.tenant, request.reference))
    record = Followed(RULES, 10_000 + number, key, encode_reference_state(state))
    assert api.references.take([record], is_old=False) == []


def run(api: Api, *arguments: str) -> Result:
    command, *rest = arguments
    return CliRunner().invoke(
        mqlake, ["references", command, "--data-dir", str(api.data_dir), *rest]
    )


def lines(result: Result) -> list[str]:
    return [click.unstyle(line).rstrip() for line in result.output.splitlines()]


def test_a_table_is_put_printed_rolled_back_and_deleted(writing: Api, tmp_path: Path) -> None:
    file = tmp_path / "m.csv"
    file.write_text("id,limit\nm1,7\n")
    assert lines(run(writing, "put", "machines", str(file))) == ["machines: version 0, 1 rows"]
    file.with_suffix(".jsonl").write_text('{"id": "m1", "limit": 8.5}\n{"id": "m2"}\n')
    put = run(writing, "put", "machines", str(file.with_suffix(".jsonl")), "--key", "id")
    assert lines(put) == ["machines: version 1, 2 rows"]

    assert lines(run(writing, "get", "machines")) == ["id,limit", "m1,8.5", "m2,"]
    assert lines(run(writing, "get", "machines", "--version", "0")) == ["id,limit", "m1,7"]
    assert lines(run(writing, "get", "machines", "--json", "--limit", "1")) == [
        '{"id": "m1", "limit": 8.5}'
    ]
    assert "id STRING, limit DOUBLE" in lines(run(writing, "list"))[-1]
    (listed,) = json.loads(run(writing, "list", "--json").output)
    assert (listed["id"], listed["version"]) == ("machines", 1)

    assert lines(run(writing, "rollback", "machines", "0")) == ["machines: version 2, 1 rows"]
    versions = lines(run(writing, "versions", "machines"))
    assert [line.split()[0] for line in versions[-3:]] == ["2", "1", "0"]
    assert versions[-3].endswith("version 0 again")

    assert lines(run(writing, "delete", "machines")) == ["deleted machines"]
    assert run(writing, "get", "machines").exit_code == 1


def test_a_file_that_cannot_be_used_is_refused_in_one_sentence(
    writing: Api, tmp_path: Path
) -> None:
    file = tmp_path / "m.xlsx"
    file.write_text("x")
    result = run(writing, "put", "machines", str(file))
    assert isinstance(result.exception, MqlakeError)
    assert ".csv" in str(result.exception)
    file = file.with_suffix(".tsv")
    file.write_text("id\tn\n1\tx\n")
    result = run(writing, "put", "machines", str(file), "--schema", "id STRING, n BIGINT")
    assert str(result.exception) == "line 2, column 'n': 'x' is no BIGINT"
