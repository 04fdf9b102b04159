"""The example in `docs/rights.md` is a file that works."""

import re
from pathlib import Path

from api.routes.rights import WantedRights
from mqlake.rights.compiled import Rights
from mqlake.rights.files import parse_rights

DOCUMENT = Path(__file__).parents[2] / "docs" / "rights.md"


def test_the_example_does_as_its_comments_say() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    rights = Rights(parse_rights(text.split("```toml\n")[1].split("```")[0]))
    olga = rights.of("olga-1", "olga")
    assert olga.may_connect()
    assert olga.may_subscribe("plant/#", 2)
    assert olga.may_receive("plant/1")
    assert not olga.may_receive("plant/secret/1")
    device = rights.of("d1", "d1")
    assert device.may_publish("devices/d1/telemetry", 1, False)
    assert not device.may_publish("devices/d2/telemetry", 1, False)
    assert not rights.of("olga-1", "d1").may_connect()


def test_the_request_is_one_of_the_api() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    (body,) = re.findall(r"/rights -d '(.*?)'\n```", text, re.DOTALL)
    assert WantedRights.model_validate_json(body).version == 0
