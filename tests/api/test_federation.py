"""What the API says of a federator that runs, of one that is dead, and of none."""

import asyncio
import json
from typing import Any

from api.alarms.checks import of_system
from mqlake.processes.heartbeat import write_heartbeat
from tests.api.conftest import Api
from tests.ingest.federation.sites.harness import Site, are_linked, until


def figures() -> dict[str, Any]:
    """Return what a federator says that has one neighbour there and one that is away."""

    async def collect() -> dict[str, Any]:
        a, b, away = Site(1), Site(2), Site(3)
        a.link(b, away)
        b.link(a)
        await a.start()
        await b.start()
        await until(lambda: are_linked(b))
        await a.publish("f/x", b"1")
        await until(lambda: b.have([b"1"]))
        assert a.service is not None
        service = a.service
        await until(lambda: service.links[3].behind == 1 and service.links[2].waiting == 0)
        await until(lambda: service.finding.overlay.map.reachable() == {1, 2})
        found = service.figures()
        await b.stop()
        await a.stop()
        return found

    return asyncio.run(collect())


def test_links_and_what_they_carry_are_shown(api: Api) -> None:
    said = figures()
    path = api.data_dir / "run" / "federation.json"
    path.parent.mkdir(exist_ok=True)
    write_heartbeat(path, "federation-1", healthy=True, detail="1 of 2 there", figures=said)
    found: Any = api.get("/federation")
    assert (found["healthy"], found["detail"], found["site"]) == (True, "1 of 2 there", 1)
    there, away = found["links"]
    assert (there["site"], there["there"], there["reason"], there["behind"]) == (2, True, "", 0)
    assert (there["counters"]["sent"], there["counters"]["offered"]) == (1, 0)
    assert (there["wants"], there["carries"]) == (1, ["f/#"])
    assert there["bytes"] > 100 > away["bytes"] == 0
    assert (away["site"], away["there"], away["behind"]) == (3, False, 1)
    assert away["reason"]
    assert found["counters"] == said["counters"]
    assert found["overlay"] == said["overlay"]
    assert not found["overlay"]["finds"]
    links = {one["site"]: (one["state"], one["links"]) for one in found["overlay"]["sites"]}
    assert links == {1: ("self", [2]), 2: ("linked", [1])}
    assert api.get("/metrics")["federation"] == found
    beat = json.loads(path.read_text())
    beat["written_at"] -= 100
    path.write_text(json.dumps(beat))
    answer = api.request("GET", "/federation")
    assert answer.status_code == 503
    assert "says nothing" in answer.json()["detail"]


def test_a_link_that_is_held_back_is_shown_and_warned_of(api: Api) -> None:
    said = figures()
    (there, _) = said["links"]
    assert (there["held"], there["held_because"]) == (0, "")
    there |= {"held": 2, "held_because": "5 ranges are missing"}
    path = api.data_dir / "run" / "federation.json"
    path.parent.mkdir(exist_ok=True)
    write_heartbeat(path, "federation-1", healthy=True, detail="2 of 2 there", figures=said)
    shown = api.get("/federation")["links"][0]
    assert (shown["held"], shown["held_because"]) == (2, "5 ranges are missing")
    found = [one for one in of_system(api.services.metrics.source.read()) if "held" in one.what]
    assert [(one.severity, one.what, one.detail) for one in found] == [
        ("warning", "messages from site 2 are held back", "5 ranges are missing")
    ]


def test_without_federation_it_says_how_to_get_it(api: Api) -> None:
    answer = api.request("GET", "/federation")
    assert answer.status_code == 404
    assert "up --federation" in answer.json()["detail"]
    assert api.get("/metrics")["federation"] is None
