from api.app import _add_metrics
from mqlake.metrics.families import Families
from mqlake.metrics.names import API, OTHER
from tests.api.conftest import Api


def samples(api: Api) -> dict[tuple[str, ...], float]:
    families = Families()
    _add_metrics(api.services, families)
    found = list(families)
    assert {family.name for family in found} <= {one.name.removesuffix("_total") for one in API}
    return {
        (
            one.name,
            *(value for name, value in sorted(one.labels.items()) if name != "le"),
        ): one.value
        for family in found
        for one in family.samples
        if one.labels.get("le", "+Inf") == "+Inf"
    }


def test_requests_are_counted_by_route_and_status(api: Api) -> None:
    api.put_session("c1")
    for client_id in ("c1", "c1", "nobody"):
        api.request("GET", f"/clients/{client_id}")
    api.client.request("GET", "/api/v1/clients/c1")
    found = samples(api)
    name = "mqlake_api_requests_total"
    route = "/clients/{client_id}"
    assert found[name, "GET", route, "200"] == 2
    assert found[name, "GET", route, "404"] == 1
    assert found[name, "GET", route, "401"] == 1
    assert found["mqlake_api_request_duration_seconds_count", "GET", route] == 4
    assert found["mqlake_api_live_readers",] == 0


def test_what_somebody_makes_up_is_no_label(api: Api) -> None:
    for number in range(3):
        api.client.request(f"M{number}", f"/api/v1/no/such/{number}")
    found = samples(api)
    assert found["mqlake_api_requests_total", OTHER, OTHER, "404"] == 3


def test_every_name_is_in_the_table(api: Api) -> None:
    api.request("GET", "/live")
    families = Families()
    _add_metrics(api.services, families)
    assert {one.name for one in families} == {one.name.removesuffix("_total") for one in API}
