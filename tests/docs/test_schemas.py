"""Examples of `docs/schemas.md`, and what it says the API has."""

import json
import re
from pathlib import Path

from api.app import create_app
from api.schemas.views import NewSchema
from api.settings import ApiSettings
from api.wiring.services import make_services
from rules.schemas.model import MAX_SCHEMAS, MAX_SOURCE_CHARACTERS, MAX_VERSIONS
from tests.docs.test_rules_rest import REQUEST, nameless

TEXT = (Path(__file__).parents[2] / "docs" / "schemas.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(
    r"```sql\n(.*?)```\n\n```json\n(.*?)```\n\n```(json|text)\n(.*?)```", TEXT, re.DOTALL
)


def registered() -> NewSchema:
    (body,) = re.findall(r"-d '(.*?)'\n```", TEXT, re.DOTALL)
    return NewSchema.model_validate(json.loads(body))


def test_every_route_of_schemas_is_described_and_no_other(tmp_path: Path) -> None:
    token = tmp_path / "api-token"
    token.write_text("t")
    app = create_app(
        make_services(ApiSettings(data_dir=tmp_path, token_file=token, host_names=("mqlake",)))
    )
    routes = {
        (method.upper(), nameless(path.removeprefix("/api/v1")))
        for path, methods in app.openapi()["paths"].items()
        for method, route in methods.items()
        if "schemas" in route["tags"]
    }
    described = TEXT[: TEXT.index("## Avro")]
    named = {(method, nameless(path)) for method, path in REQUEST.findall(described)}
    assert {one for one in named if one[1].startswith("/schemas")} == routes


def test_limits_are_those_of_schemas() -> None:
    for limit in (MAX_SOURCE_CHARACTERS, MAX_VERSIONS, MAX_SCHEMAS):
        assert f"{limit:,}" in TEXT


def test_there_are_examples() -> None:
    assert len(EXAMPLES) == 6
    assert len(EXAMPLES) == TEXT.count("```sql")
