"""A key for some tenants: it may have what is theirs, and asks for nothing else."""

import asyncio
from typing import Any

import pytest

from api.jobs.jobs import Job, Jobs
from tests.api.conftest import Api, operations
from tests.api.live.websocket import Socket
from tests.api.test_access import PASSWORD, bearer, make_key, session_of

ABOUT_CALLERS = {
    *(
        "GET /session",
        "GET /session/operations",
        "POST /logout",
        "POST /session/password",
        "GET /tenants",
        "GET /metrics/tenants",
    ),
    *("GET /keys", "POST /keys", "GET /keys/{id}", "DELETE /keys/{id}"),
    *("GET /alarms", "POST /alarms/{id}/acknowledge", "DELETE /alarms/{id}/acknowledge"),
    *("GET /sessions", "DELETE /sessions/{id}"),
    *("GET /accounts", "POST /accounts", "GET /accounts/{name}", "PUT /accounts/{name}"),
    *("DELETE /accounts/{name}", "GET /rule_events", "GET /rule_actions"),
    *("GET /jobs", "GET /jobs/{id}", "DELETE /jobs/{id}", "POST /jobs/{id}/resume"),
    "POST /sql/start",
}
"""They name no tenant, and tell each caller of his own, or nothing; their tests are below."""
OF_ALL = {"DELETE /history"}
"""They name a tenant, and touch all."""


def key_for(api: Api, *tenants: str, role: str = "admin") -> dict[str, str]:
    return bearer(make_key(api, role, tenants=list(tenants or ("acme",)))["key"])


def test_each_operation_obeys_or_refuses(api: Api) -> None:
    """A new operation refuses until it names a tenant, or says that it obeys and stands above."""
    key = key_for(api)
    for method, path, operation in operations(api):
        if "security" not in operation:
            continue  # for everybody
        name = f"{method} {path}"
        names_one = any(one["name"] == "tenant" for one in operation.get("parameters", ()))
        is_open = name in ABOUT_CALLERS or (names_one and name not in OF_ALL)
        assert operation["x-tenants"] == is_open, name
        if not is_open:
            asked = path.replace("{", "").replace("}", "") + "?tenant=acme"
            answer = api.request(method, asked, key)
            assert answer.status_code == 403, name


def test_ones_own_tenants_are_asked_by_name(api: Api) -> None:
    key = key_for(api, "acme", "beta", role="viewer")
    for tenant in ("acme", "beta"):
        api.put_session("one", tenant=tenant)
        assert len(api.request("GET", f"/clients?tenant={tenant}", key).json()["items"]) == 1
    for query in ("", "?tenant=default", "?tenant=gamma", "?tenant=acme&tenant=gamma"):
        assert api.request("GET", f"/clients{query}", key).status_code == 403
    own = key_for(api, "default", role="viewer")
    assert api.request("GET", "/clients", own).status_code == 200, "it is asked for without a name"


def test_tenants_are_listed_that_are_ones_own(api: Api) -> None:
    for name in ("acme", "beta"):
        assert api.request("PUT", f"/tenants/{name}", json={}).status_code == 200
    listed = api.request("GET", "/tenants", key_for(api, "acme", "gamma", role="viewer")).json()
    assert [one["name"] for one in listed["items"]] == ["acme", "gamma"]


def test_jobs_are_those_of_ones_own_tenants(api: Api) -> None:
    jobs: Jobs = api.services.runs.jobs

    def work(job: Job) -> dict[str, Any]:
        return {"done": job.tenant}

    made = {name: jobs.start("dry_run", name, "r", work).id for name in ("acme", "beta")}
    key = key_for(api)
    listed = api.request("GET", "/jobs", key).json()["items"]
    assert [one["id"] for one in listed] == [made["acme"]]
    assert api.request("GET", f"/jobs/{made['acme']}", key).status_code == 200
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/resume")):
        answer = api.request(method, f"/jobs/{made['beta']}{path}", key)
        assert answer.status_code == 404
    assert len(api.get("/jobs")["items"]) == 2


def test_an_administrator_of_a_tenant_looks_after_its_keys(api: Api) -> None:
    others = make_key(api, tenants=["beta"]), make_key(api, tenants=["acme", "beta"]), make_key(api)
    key = key_for(api)
    made = api.request("POST", "/keys", key, json={"role": "admin", "description": "x"}).json()
    assert made["tenants"] == ["acme"]
    for tenants in (["beta"], ["acme", "beta"], ["default"]):
        body = {"role": "viewer", "description": "x", "tenants": tenants}
        assert api.request("POST", "/keys", key, json=body).status_code == 403
    listed = {one["id"] for one in api.request("GET", "/keys", key).json()["items"]}
    assert made["id"] in listed
    for other in others:
        assert other["id"] not in listed
        for method in ("GET", "DELETE"):
            assert api.request(method, f"/keys/{other['id']}", key).status_code == 404
    assert api.request("DELETE", f"/keys/{made['id']}", key).status_code == 204


def test_an_administrator_of_a_tenant_looks_after_its_accounts(api: Api) -> None:
    key = key_for(api)
    for name, tenants in (("bob", ["beta"]), ("root", None)):
        body = {"name": name, "role": "admin", "password": PASSWORD, "tenants": tenants}
        assert api.request("POST", "/accounts", json=body).status_code == 201
    ann = {"name": "ann", "role": "editor", "password": PASSWORD}
    assert api.request("POST", "/accounts", key, json=ann).json()["tenants"] == ["acme"]
    assert [one["name"] for one in api.request("GET", "/accounts", key).json()["items"]] == ["ann"]
    for name in ("bob", "root"):
        for method in ("GET", "DELETE", "PUT"):
            answer = api.request(method, f"/accounts/{name}", key, json={"password": "another one"})
            assert answer.status_code == 404
    for name, beginning in (
        ("bob", "the name 'bob' is taken"),
        ("api-token", "the name 'api-token' is taken"),
        ("ann", "there is an account 'ann': change it with PUT"),
    ):
        taken = api.request("POST", "/accounts", key, json={**ann, "name": name})
        assert taken.status_code == 409
        assert taken.json()["detail"].startswith(beginning), "nothing of whose it is"
    for tenants in (["beta"], ["acme", "beta"]):
        wider = api.request("PUT", "/accounts/ann", key, json={"tenants": tenants})
        assert wider.status_code == 403
    changed = api.request("PUT", "/accounts/ann", key, json={"tenants": None, "role": "admin"})
    assert (changed.json()["tenants"], changed.json()["role"]) == (["acme"], "admin")
    headers, said = session_of(api)
    assert said["tenants"] == ["acme"]
    assert api.request("GET", "/clients", headers).status_code == 403
    assert api.request("GET", "/clients?tenant=acme", headers).status_code == 200
    body = {"old_password": PASSWORD, "new_password": "another one"}
    assert api.request("POST", "/session/password", headers, json=body).status_code == 204


def test_other_tenants_count_at_once(api: Api) -> None:
    body = {"name": "ann", "role": "viewer", "password": PASSWORD, "tenants": ["acme"]}
    api.request("POST", "/accounts", json=body)
    headers, _ = session_of(api)
    callers = api.services.access.authenticator.callers
    caller = callers.by_session(headers["Cookie"].split("=")[1])
    assert caller is not None
    assert api.request("GET", "/clients?tenant=acme", headers).status_code == 200
    api.request("PUT", "/accounts/ann", json={"tenants": ["beta"]})
    assert api.request("GET", "/clients?tenant=acme", headers).status_code == 403
    assert not callers.is_current(caller), "live streams end"
    shown = api.request("PUT", "/accounts/ann", json={"tenants": None}).json()
    assert shown["tenants"] is None
    assert api.request("GET", "/clients", headers).status_code == 200


def test_a_websocket_obeys_too(api: Api) -> None:
    key = key_for(api)

    async def talk() -> None:
        async with Socket(api.client.app, key) as socket:

            async def ask(**asked: Any) -> Any:
                await socket.say(subscribe="a", **asked)
                (told,) = await socket.hear()
                return told["event"], told["data"].get("status")

            messages = {"stream": "messages", "topic_filters": ["#"]}
            for asked in (
                {"stream": "metrics"},
                {"stream": "outputs"},
                {"stream": "outputs", "tenant": "beta"},
                messages,
                {**messages, "tenant": "beta"},
            ):
                assert await ask(**asked) == ("error", 403)
            assert await ask(**messages, tenant="acme") == ("subscribed", None)

    asyncio.run(talk())


@pytest.mark.parametrize("tenants", ["acme", [], ["a/b"], ["Acme"], [""], ["a"] * 101, [1]])
def test_what_is_no_tenant_is_refused(api: Api, tenants: Any) -> None:
    body = {"role": "viewer", "description": "x", "tenants": tenants}
    assert api.request("POST", "/keys", json=body).status_code == 422


def test_a_key_may_be_for_topics_of_a_tenant(api: Api) -> None:
    made = make_key(api, "editor", tenants=["acme"], topic_filters=["lab/#"])
    key = bearer(made["key"])
    for tenant, topic, status in (
        ("acme", "lab/1", 200),
        ("acme", "other", 403),
        ("beta", "lab/1", 403),
    ):
        one = {"topic_name": topic, "payload": "x"}
        answer = api.request("POST", f"/publish?tenant={tenant}", key, json=one)
        assert answer.status_code == status
