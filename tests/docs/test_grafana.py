"""The dashboard is one by the schema of Grafana, as Grafana Labs' SDK has it.

The SDK takes what it knows and leaves out the rest, and does not look at types: here both count.
"""

import enum
import json
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

FILE = Path(__file__).parents[2] / "conf" / "grafana" / "mqlake.json"

Json = Any


@pytest.fixture
def dashboard() -> dict[str, Json]:
    plugins.register_default_plugins()
    found: dict[str, Json] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def faults(document: dict[str, Json]) -> list[str]:
    model = Dashboard.from_json(document)
    written = json.loads(JSONEncoder().encode(model))
    return [*left_out(document, written, "$"), *wrong(model, Dashboard, "$")]


def left_out(document: Json, written: Json, where: str) -> Iterator[str]:
    """Yield what a document has and the schema does not know."""
    if isinstance(document, dict) and isinstance(written, dict):
        for name, value in document.items():
            if name in written:
                yield from left_out(value, written[name], f"{where}.{name}")
            else:
                yield f"{where}.{name}: unknown"
    elif isinstance(document, list) and isinstance(written, list):
        for at, pair in enumerate(zip(document, written, strict=True)):
            yield from left_out(*pair, f"{where}[{at}]")
    elif document != written:
        yield f"{where}: {document!r} is read as {written!r}"


def wrong(value: Any, of: Any, where: str) -> Iterator[str]:
    """Yield which values are not of the type that the schema gives them."""
    origin, parts = typing.get_origin(of), typing.get_args(of)
    if origin is typing.Union:
        if value is not None or type(None) not in parts:
            meant = [part for part in parts if part is type(value)] or parts
            found = [list(wrong(value, part, where)) for part in meant if part is not type(None)]
            yield from min(found, key=len)
    elif origin is list and isinstance(value, list):
        for at, one in enumerate(value):
            yield from wrong(one, parts[0], f"{where}[{at}]")
    elif origin is dict and isinstance(value, dict):
        for name, one in value.items():
            yield from wrong(one, parts[1], f"{where}.{name}")
    elif origin is typing.Literal:
        if value not in parts:
            yield f"{where}: {value!r} is none of {parts}"
    elif isinstance(of, type) and issubclass(of, enum.Enum):
        if value not in [one.value for one in of]:
            yield f"{where}: {value!r} is none of {[one.value for one in of]}"
    elif of is float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            yield f"{where}: {value!r} is no number"
    elif isinstance(of, type) and of is not object and not isinstance(value, of):
        yield f"{where}: {value!r} is no {of.__name__}"
    elif hasattr(type(value), "from_json"):
        for name, hint in typing.get_type_hints(type(value)).items():
            yield from wrong(getattr(value, name), hint, f"{where}.{name}")


def test_the_dashboard_is_one_by_the_schema(dashboard: dict[str, Json]) -> None:
    assert len(dashboard["panels"]) > 10
    assert faults(dashboard) == []


def test_faults_of_a_dashboard_are_found(dashboard: dict[str, Json]) -> None:
    panel = next(one for one in dashboard["panels"] if one["type"] == "timeseries")
    panel["options"]["legend"]["placement"] = "left"
    panel["fieldConfig"]["defaults"]["custom"]["lineWidth"] = "thick"
    panel["gridPosition"] = {}
    panel["targets"][0]["expr"] = 1
    dashboard["refresh"] = 5
    found = [fault.partition(": ")[0].rpartition(".")[2] for fault in faults(dashboard)]
    assert sorted(found) == ["expr", "gridPosition", "line_width", "placement", "refresh"]
