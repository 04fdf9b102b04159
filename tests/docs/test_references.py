"""What `docs/references.md` says is what the API and the command line have."""

import json
import re
from pathlib import Path

import pytest

from api.app import create_app
from api.references.reading import UploadError, read_schema, read_upload
from api.routes.rules.references import UploadProblemDetails
from api.settings import ApiSettings
from api.wiring.services import make_services
from cli.requests.references import command
from mqlake.records.references import COLUMN_TYPES
from rules.language.compiler import compile_rule
from rules.references import (
    MAX_BYTES,
    MAX_COLUMNS,
    MAX_REFERENCE_CHARACTERS,
    MAX_REFERENCES,
    MAX_ROWS,
    MAX_TEXT_CHARACTERS,
)
from tests.docs.test_rules_rest import REQUEST, nameless

TEXT = (Path(__file__).parents[2] / "docs" / "references.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)


def test_every_route_is_described_and_no_other(tmp_path: Path) -> None:
    token = tmp_path / "api-token"
    token.write_text("t")
    app = create_app(
        make_services(ApiSettings(data_dir=tmp_path, token_file=token, host_names=("mqlake",)))
    )
    routes = {
        (method.upper(), nameless(path.removeprefix("/api/v1")))
        for path, methods in app.openapi()["paths"].items()
        for method, route in methods.items()
        if "references" in route["tags"]
    }
    assert {(method, nameless(path)) for method, path in REQUEST.findall(TEXT)} == routes


def test_the_rule_reads_the_table_that_is_uploaded() -> None:
    (table,) = blocks("csv")
    upload = read_upload(table.encode(), "csv")
    assert upload.columns == (("id", "STRING"), ("site", "STRING"), ("limit", "DOUBLE"))
    (rule,) = blocks("sql")
    plan = compile_rule(rule, {"machines": upload.columns}).plan
    assert plan is not None
    assert [reference.table for reference in plan.references] == ["machines"]


def test_the_error_is_one_that_comes() -> None:
    (text,) = blocks("json")
    found = json.loads(text)
    with pytest.raises(UploadError) as refused:
        read_upload(b"id,limit\na,1\nb,hot\n", "csv", schema=read_schema("id STRING, limit DOUBLE"))
    assert (str(refused.value), refused.value.line) == (found["detail"], found["line"])
    assert found.keys() <= UploadProblemDetails.model_fields.keys()


def test_every_command_is_shown() -> None:
    shown = set(re.findall(r"bin/mqlake references (\w+)", TEXT))
    assert shown == set(command.commands)


def test_limits_are_those_of_the_code() -> None:
    for shown in (
        f"{MAX_BYTES // 1024**2} MiB",
        f"{MAX_ROWS:,}",
        f"{MAX_COLUMNS}; letters",
        f"{MAX_TEXT_CHARACTERS:,}",
        f"{MAX_REFERENCE_CHARACTERS} small letters",
        f"{MAX_REFERENCES:,}",
    ):
        assert f"| {shown}" in TEXT
    for type_ in COLUMN_TYPES:
        assert f"| `{type_}` |" in TEXT
