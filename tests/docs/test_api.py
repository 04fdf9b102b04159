"""What `docs/api.md` says is what the API has; its examples are run."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from api.access.views import SessionView
from api.routes.messages.live import read_frame
from api.routes.messages.publish import PublishedMessage
from api.routes.system.gateways import Placement
from api.web.problems import CODES, ProblemDetails
from tests.api.conftest import Api, memory_api
from tests.api.test_api import TOKEN
from tests.docs.test_rules_rest import REQUEST, nameless

TEXT = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
TAGS = {
    *(
        "access",
        "alarms",
        "balancer",
        "bans",
        "clients",
        "federation",
        "gateways",
        "health",
        "live",
    ),
    *("metrics", "processes", "publish", "retained", "rights", "tenants", "topics"),
}
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
BLOCKS = [(found[1], found[2]) for found in BLOCK.finditer(TEXT)]
CURLS = [
    command
    for language, text in BLOCKS
    if language == "sh"
    for command in text.replace("\\\n", " ").splitlines()
    if command.startswith("curl")
]


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with memory_api(tmp_path_factory.mktemp("api"), live_seconds=0.1) as made:
        yield made


def test_every_route_is_described_and_no_other(api: Api) -> None:
    routes = {
        (method.upper(), nameless(path.removeprefix("/api/v1")))
        for path, methods in api.client.app.openapi()["paths"].items()
        for method, route in methods.items()
        if TAGS & set(route["tags"])
    }
    rows = "".join(line for line in TEXT.splitlines() if line.startswith("| `"))
    assert {(method, nameless(path)) for method, path in REQUEST.findall(rows)} == routes


def test_every_code_is_described_as_it_is() -> None:
    rows = re.findall(r"^\| `([a-z_]+)` \| (.*) \|$", TEXT, re.MULTILINE)
    assert {code: words for code, words in rows if code in CODES} == CODES


@pytest.mark.parametrize("command", CURLS, ids=lambda command: command.rpartition("$api")[2][:30])
def test_the_examples_run(api: Api, command: str) -> None:
    words = shlex.split(command.replace("$api", "/api/v1").replace("$token", TOKEN))[1:]
    headers, body, path = {}, None, ""
    while words:
        word = words.pop(0)
        if word == "-H":
            name, _, value = words.pop(0).partition(": ")
            headers[name] = value
        elif word == "-d":
            body = words.pop(0)
        elif word == "--max-time":
            words.pop(0)
        elif word != "-N":
            path = word
    method = "GET" if body is None else "POST"
    answer = api.client.request(method, path, headers, content=body)
    assert answer.status_code in (200, 201), answer.text


def test_the_answers_are_of_the_api() -> None:
    objects = [text for language, text in BLOCKS if language == "json"]
    models = (SessionView, ProblemDetails, PublishedMessage, Placement)
    for text, model in zip(objects[:-1], models, strict=True):
        adapter: TypeAdapter[Any] = TypeAdapter(model)
        shown = adapter.dump_python(adapter.validate_json(text))
        assert set(json.loads(text)) <= set(shown)
    for frame in objects[-1].splitlines():
        read_frame(frame)
