"""The files in `conf/` show every setting with its default."""

import re
import tomllib
from pathlib import Path

import pytest
from pydantic import BaseModel

from api.settings import ApiSettings
from ingest.gateway.settings import GatewaySettings
from mqlake.local.settings import LocalSettings
from mqlake.settings import ProcessSettings
from streaming.settings import StreamingSettings

CONF = Path(__file__).parents[2] / "conf"

SHOWN_BY_EXAMPLE = {"connect_token", "log_port", "log_dir", "log_file", "heartbeat_file", "spark"}
"""No default that could be written down."""

FILES = pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("gateway", GatewaySettings),
        ("streaming", StreamingSettings),
        ("api", ApiSettings),
        ("local", LocalSettings),
    ],
)


def uncommented(name: str) -> dict[str, object]:
    """Read a file as if every key in it were set."""
    lines = (CONF / f"{name}.toml").read_text(encoding="utf-8").splitlines()
    settings = [found[1] for line in lines if (found := re.match(r"#? ?([a-z_]+ = .*|\[.*)", line))]
    return tomllib.loads("\n".join(settings))


@FILES
def test_file_as_it_is_changes_nothing(name: str, settings: type[ProcessSettings]) -> None:
    shipped = tomllib.loads((CONF / f"{name}.toml").read_text(encoding="utf-8"))
    assert all(table == {} for table in shipped.values())


@FILES
def test_file_shows_every_key_with_its_default(name: str, settings: type[ProcessSettings]) -> None:
    shown = uncommented(name)
    assert set(shown) >= set(settings.model_fields) - SHOWN_BY_EXAMPLE
    assert set(shown) <= set(settings.model_fields)
    for key, value in shown.items():
        if key in SHOWN_BY_EXAMPLE:
            continue
        default = settings.model_fields[key].default
        if isinstance(default, BaseModel):
            default = default.model_dump()
        elif isinstance(default, Path):
            default = str(default)
        assert value == default, f"{name}.toml: {key}"
