"""Secrets of the action `http`: by name, for their servers alone, told to nobody else."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr, ValidationError

from mqlake.clock import SystemClock
from rules.actions.contract import ActionError, Failure
from rules.actions.log import KAFKA
from rules.actions.sql import POSTGRES
from rules.actions.webhook import Webhook, WebhookArgs
from rules.runner.http_client import HttpClientPool
from rules.runner.named_secrets import MAX_SECRET_BYTES, Secrets
from rules.runner.services import RunnerServices
from rules.runner.settings import RulesSettings, SecretSettings
from tests.rules.runner.test_http_client import LOOPBACK
from tests.rules.runner.web import Web, running_web
from tests.rules.test_templates import work_for

pytestmark = pytest.mark.anyio


@pytest.fixture
def web() -> Iterator[Web]:
    with running_web(Web()) as server:
        yield server


def secret(server: str, value: str = "s3cret", **more: Any) -> SecretSettings:
    return SecretSettings(value=SecretStr(value), servers=(server,), **more)


def webhook(secrets: dict[str, SecretSettings], tenant: str = "default", **args: Any) -> Webhook:
    class Services:
        read_secret = Secrets(secrets, tenant).read
        check_secret = Secrets(secrets, tenant).check

        def http(self, **options: Any) -> HttpClientPool:
            return HttpClientPool(LOOPBACK, SystemClock(), **options)

    return Webhook(WebhookArgs.model_validate(args), Services())  # type: ignore[arg-type]


async def test_a_request_holds_the_secrets_that_its_rule_names(web: Web) -> None:
    action = webhook(
        {"hook": secret(web.url), "key": secret(web.url, "a/b&c d")},
        url=f"{web.url}/x/${{$secret.key}}?k=${{$secret.key}}",
        headers={"Authorization": "Bearer ${$secret.hook}"},
        body='{"key": "${$secret.hook}", "n": ${n}}',
    )
    await action.run([work_for({"n": 1, "$secret": {"hook": "of the row"}})])
    await action.close()
    (asked,) = web.asked
    assert asked.headers["Authorization"] == "Bearer s3cret"
    assert asked.body == b'{"key": "s3cret", "n": 1}'
    assert asked.path == "/x/a/b%26c%20d?k=a/b%26c%20d"


async def test_a_row_names_no_secret(web: Web) -> None:
    action = webhook({"hook": secret(web.url)}, url=web.url, headers={"X": "${a}"})
    await action.run([work_for({"a": "${$secret.hook}"})])
    await action.close()
    assert web.asked[0].headers["X"] == "${$secret.hook}"


@pytest.mark.parametrize(
    "server",
    ["https://hooks.example", "http://127.0.0.1:1", "https://127.0.0.1", "http://localhost"],
)
async def test_a_secret_goes_to_its_servers_alone(web: Web, server: str) -> None:
    with pytest.raises(ActionError, match=r"secret hook is not for http://127\.0\.0\.1:\d+"):
        webhook({"hook": secret(server)}, url=web.url, body="${$secret.hook}")


async def test_a_secret_that_nobody_knows_is_named(web: Web) -> None:
    with pytest.raises(ActionError, match="there is no secret hook"):
        webhook({}, url=web.url, body="${$secret.hook}")


async def test_rules_name_the_secrets_of_their_tenant_and_those_that_are_for_it(web: Web) -> None:
    known = {
        "hook": secret(web.url, "of the first"),
        "acme/hook": secret(web.url, "of acme"),
        "shared": secret(web.url, "of some", tenants=("beta", "gamma")),
        "open": secret(web.url, "of all", tenants=("*",)),
    }
    for tenant, name, value in (
        ("default", "hook", "of the first"),
        ("acme", "hook", "of acme"),
        ("beta", "shared", "of some"),
        ("acme", "open", "of all"),
    ):
        action = webhook(known, tenant, url=web.url, body=f"${{$secret.{name}}}")
        await action.run([work_for({})])
        await action.close()
        assert web.asked[-1].body == value.encode()
    said = []
    for tenant, name in (
        ("beta", "hook"),
        ("acme", "shared"),
        ("default", "shared"),
        ("beta", "nothing"),
    ):
        with pytest.raises(ActionError) as caught:
            webhook(known, tenant, url=web.url, body=f"${{$secret.{name}}}")
        said.append(str(caught.value).replace(name, "*").replace(tenant, "*"))
    assert len(set(said)) == 1, "nobody learns what others have"


async def test_no_name_leads_to_a_secret_of_another_tenant(web: Web) -> None:
    known = {"acme/hook": secret(web.url)}
    for name in ("acme/hook", "../acme/hook", "acme"):
        with pytest.raises((ActionError, ValidationError)):
            webhook(known, "beta", url=web.url, body=f"${{$secret.{name}}}")


def nowhere(_topic_name: str) -> bool:
    return False


async def test_connections_are_for_tenants_as_secrets_are() -> None:
    database: dict[str, Any] = {"kind": "postgresql", "host": "h", "database": "d", "user": "u"}
    cluster: dict[str, Any] = {"kind": "kafka", "bootstrap_servers": "h:1"}
    settings = RulesSettings.model_validate(
        {
            "connections": {
                "first": database,
                "acme/own": database,
                "open": {**database, "tenants": ["*"]},
                "cluster": {**cluster, "tenants": ["beta"]},
            }
        }
    )
    target: Any = object()
    services = RunnerServices(settings, target, SystemClock(), print)
    assert services.of("acme", nowhere).log is target
    for tenant, name in (("default", "first"), ("acme", "own"), ("beta", "open")):
        assert services.of(tenant, nowhere).connection(POSTGRES, name)
    opened = [services.of(who, nowhere).connection(POSTGRES, "open") for who in ("acme", "beta")]
    assert opened[0] is opened[1]
    for tenant, name in (("acme", "first"), ("beta", "own"), ("beta", "acme/own")):
        with pytest.raises(ActionError, match=f"no connection {name} for rules of .* {tenant};"):
            services.of(tenant, nowhere).connection(POSTGRES, name)
    with pytest.raises(ActionError, match="no connection cluster"):
        services.of("acme", nowhere).connection(KAFKA, "cluster")
    with pytest.raises(ActionError, match="connection cluster is not of kind postgresql"):
        services.of("beta", nowhere).connection(POSTGRES, "cluster")
    await services.close()


@pytest.mark.parametrize(
    "fields",
    [
        {"acme/hook": {"tenants": ["beta"]}},
        {"acme/hook": {"tenants": ["*"]}},
        {"hook": {"tenants": []}},
        {"hook": {"tenants": ["a/b"]}},
        {"/hook": {}},
        {"a/b/hook": {}},
    ],
)
def test_a_tenants_own_secret_is_for_no_other(fields: dict[str, Any]) -> None:
    given = {"value": "x", "servers": ["https://a.example"]}
    with pytest.raises(ValidationError):
        RulesSettings.model_validate({"secrets": {k: given | v for k, v in fields.items()}})


@pytest.mark.parametrize("status", [400, 401, 500, 503])
async def test_what_a_server_says_of_a_request_with_a_secret_is_not_told(
    web: Web, status: int
) -> None:
    web.answers = [status]
    action = webhook({"hook": secret(web.url)}, url=web.url, body="${$secret.hook}")
    with pytest.raises(ActionError) as caught:
        await action.run([work_for({})])
    await action.close()
    assert str(caught.value) == f"answer {status}"


@pytest.mark.parametrize("value", ["a\nb", "a\0b", "a\x7f"])
async def test_a_secret_that_no_header_can_hold_is_not_told(web: Web, value: str) -> None:
    known = {"hook": secret(web.url, value)}
    action = webhook(known, url=web.url, headers={"X": "${$secret.hook}"})
    with pytest.raises(ActionError) as caught:
        await action.run([work_for({})])
    await action.close()
    assert str(caught.value) == "header X would hold a control character"
    assert not web.asked


async def test_a_secret_that_the_client_library_refuses_is_not_told(web: Web) -> None:
    known = {"hook": secret(web.url, " s3cret")}
    action = webhook(known, url=web.url, headers={"X": "${$secret.hook}"})
    with pytest.raises(ActionError) as caught:
        await action.run([work_for({})])
    await action.close()
    assert str(caught.value) == "request is not valid"
    assert not web.asked


async def test_a_file_is_read_at_each_request(web: Web, tmp_path: Path) -> None:
    path = tmp_path / "hook"
    path.write_text("first\n")
    known = {"hook": SecretSettings(file=path, servers=(f"{web.url}/",))}
    action = webhook(known, url=web.url, headers={"X": "${$secret.hook}"})
    await action.run([work_for({})])
    new = tmp_path / "new"
    new.write_text("second")
    os.replace(new, path)
    await action.run([work_for({})])
    assert [one.headers["X"] for one in web.asked] == ["first", "second"]
    for content in (b"", b"\n", b"\xff", b"x" * (MAX_SECRET_BYTES + 1)):
        path.write_bytes(content)
        with pytest.raises(ActionError, match="secret hook") as caught:
            await action.run([work_for({})])
        assert caught.value.failure is Failure.UNAVAILABLE
    path.unlink()
    with pytest.raises(ActionError, match="secret hook cannot be read: No such file"):
        await action.run([work_for({})])
    await action.close()


@pytest.mark.parametrize(
    "fields",
    [
        {"value": "x"},
        {"value": "x", "servers": []},
        {"servers": ["https://a.example"]},
        {"value": "x", "file": "y", "servers": ["https://a.example"]},
        {"value": "x", "servers": ["a.example"]},
        {"value": "x", "servers": ["https://a.example/path"]},
        {"value": "x", "servers": ["https://a.example?q"]},
        {"value": "x", "servers": ["https://user@a.example"]},
        {"value": "x", "servers": ["ftp://a.example"]},
    ],
)
def test_a_secret_has_one_source_and_servers(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        SecretSettings.model_validate(fields)


def test_servers_are_written_in_one_way() -> None:
    written = ("https://A.Example:443/", "http://a.example:80", "https://[2001:DB8::1]:8443")
    found = SecretSettings(value=SecretStr("x"), servers=written)
    assert found.servers == ("https://a.example", "http://a.example", "https://[2001:db8::1]:8443")


def test_settings_do_not_show_secrets() -> None:
    settings = RulesSettings(secrets={"hook": secret("https://a.example")})
    assert "s3cret" not in repr(settings)
    assert "s3cret" not in settings.model_dump_json()
