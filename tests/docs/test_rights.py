"""The example in `docs/rights.md` is a file that works."""

from pathlib import Path

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
