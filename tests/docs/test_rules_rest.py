"""What `docs/rules-rest.md` says is what the API has."""

import json
import re
from pathlib import Path
from typing import get_args

from api.app import create_app
from api.routes.rules.trials import RuleTest, RuleTestResult
from api.rules.views import NewRule
from api.settings import ApiSettings
from api.wiring.services import make_services
from rules.model import RuleState

TEXT = (Path(__file__).parents[2] / "docs" / "rules-rest.md").read_text(encoding="utf-8")


REQUEST = re.compile(r"`(GET|POST|PUT|DELETE) (/[^`]*)`")


def nameless(path: str) -> str:
    """Return a path without the names of its parameters."""
    return re.sub(r"{.*?}", "{}", path)


def test_every_route_of_rules_and_jobs_is_described_and_no_other(tmp_path: Path) -> None:
    token = tmp_path / "api-token"
    token.write_text("t")
    app = create_app(
        make_services(ApiSettings(data_dir=tmp_path, token_file=token, host_names=("mqlake",)))
    )
    routes = {
        (method.upper(), nameless(path.removeprefix("/api/v1")))
        for path, methods in app.openapi()["paths"].items()
        for method, route in methods.items()
        if {"rules", "jobs"} & set(route["tags"])
    }
    described = TEXT[: TEXT.index("## State and versions")]
    assert {(method, nameless(path)) for method, path in REQUEST.findall(described)} == routes


def test_every_state_of_a_rule_is_described() -> None:
    for state in get_args(RuleState):
        assert f"| `{state}` |" in TEXT


def test_the_examples_are_requests_and_answers_of_the_api() -> None:
    request, answer = re.findall(r"```json\n(.*?)```", TEXT, re.DOTALL)
    RuleTest.model_validate(json.loads(request))
    RuleTestResult.model_validate(json.loads(answer))
    (body,) = re.findall(r"-d '(.*?)'\n```", TEXT, re.DOTALL)
    NewRule.model_validate(json.loads(body.replace("'\\''", "'")))
