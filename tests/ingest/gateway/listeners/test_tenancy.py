"""Tenants by host names and certificates of TLS: which a client gets, and how it gets no other."""

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ingest.gateway.settings.gateway import GatewaySettings
from ingest.protocol.packets import Connack, Connect
from ingest.protocol.reason_codes import ConnackReasonCode
from tests.ingest.gateway.harness import (
    NAME,
    Client,
    Harness,
    free_port,
    new_log,
    running_gateway,
    until,
)
from tests.ingest.gateway.listeners.tls import Authority
from tests.ingest.gateway.test_tenants import ACME, BETA, PASSWORD, say, tenant_at, write_users

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.anyio


DOMAIN = "mqtt.example.org"


@asynccontextmanager
async def secured(authority: Authority, **more: Any) -> "AsyncIterator[tuple[Harness, int]]":
    log = new_log(NAME)
    say(log, ACME)
    say(log, BETA)
    port = free_port()
    listener = {"kind": "tls", "port": port, "tenant_server_names": DOMAIN}
    listener |= authority.settings() | more.pop("listener", {})
    async with running_gateway(log=log, listeners=[listener], **more) as harness:
        yield harness, port


def shown(authority: Authority, **more: Any) -> dict[str, Any]:
    """Return the keys of a listener to which clients show certificates."""
    ca = authority.ca_certificates
    return {"client_certificates": "optional", "ca_certificates": ca, **more}


async def secure_login(
    authority: Authority,
    port: int,
    host: str,
    *,
    names: tuple[str, str] | None = None,
    **fields: Any,
) -> Connack:
    """Log in by TLS that asks for a host; with a certificate of these CN and O."""
    context = authority.client_context(*(names or ()))
    context.check_hostname = False  # the server's certificate has another name
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=context, server_hostname=host
    )
    client = Client(reader, writer, 5)
    client.send(Connect("c", 5, **fields))
    return await client.expect(Connack)


@pytest.mark.parametrize(
    ("host", "tenant"),
    [
        ("acme.mqtt.example.org", ACME),
        ("ACME.MQTT.example.org", ACME),
        ("mqtt.example.org", "default"),
        ("acme.example.org", "default"),
        ("x.acme.mqtt.example.org", "default"),
        ("gamma.mqtt.example.org", None),
        ("mqtt.mqtt.example.org", None),
    ],
)
async def test_the_host_name_is_the_tenant(
    authority: Authority, host: str, tenant: str | None
) -> None:
    async with secured(authority) as (harness, port):
        connack = await secure_login(authority, port, host)
        if tenant is None:
            assert connack.reason_code is ConnackReasonCode.NOT_AUTHORIZED
        else:
            assert (connack.reason_code, tenant_at(harness)) == (0, tenant)


async def test_a_host_name_opens_no_tenant_to_users_of_others(
    authority: Authority, tmp_path: Path
) -> None:
    async with secured(authority, credentials_file=write_users(tmp_path)) as (harness, port):
        for host, username, tenant in (
            ("acme", "ann", ACME),
            ("acme", "acme/ann", ACME),
            ("beta", "ann", None),
            ("beta", "acme/ann", None),
            ("acme", "default/ann", None),
        ):
            connack = await secure_login(
                authority, port, f"{host}.{DOMAIN}", username=username, password=PASSWORD
            )
            if tenant is None:
                assert connack.reason_code is ConnackReasonCode.BAD_USER_NAME_OR_PASSWORD
            else:
                assert (connack.reason_code, tenant_at(harness)) == (0, tenant)
                transport = harness.connection("c").transport
                assert transport is not None
                transport.abort()
                await until(lambda: not harness.connections())


@pytest.mark.parametrize(
    ("host", "organization", "tenant"),
    [
        (f"acme.{DOMAIN}", ACME, ACME),
        (DOMAIN, ACME, ACME),
        (f"beta.{DOMAIN}", ACME, None),
        (DOMAIN, "Acme", None),
    ],
)
async def test_a_certificate_names_its_tenant(
    authority: Authority, host: str, organization: str, tenant: str | None
) -> None:
    listener = shown(
        authority, use_identity_as_username=True, tenant_certificate_field="organization"
    )
    async with secured(authority, listener=listener) as (harness, port):
        connack = await secure_login(authority, port, host, names=("ann", organization))
        if tenant is None:
            assert connack.reason_code is ConnackReasonCode.NOT_AUTHORIZED
        else:
            assert (connack.reason_code, tenant_at(harness)) == (0, tenant)
            assert harness.connection("c").principal == f"{tenant}/ann"


def test_a_client_never_chooses_the_tenant_of_its_certificate() -> None:
    shows = {"client_certificates": "required", "ca_certificates": "ca.pem"}
    tls = {"kind": "tls", "certificate": "a", "key": "b", **shows}
    for choice in ({"tenant_server_names": DOMAIN}, {"tenant_in_username": True}):
        listener = {**tls, **choice, "use_identity_as_username": True}
        with pytest.raises(ValueError, match="set tenant_certificate_field, too"):
            GatewaySettings.model_validate({"listeners": [listener]})
    plain = {"kind": "tls", "certificate": "a", "key": "b"}
    listener = {**plain, "tenant_certificate_field": "organization"}
    with pytest.raises(ValueError, match="client_certificates is not"):
        GatewaySettings.model_validate({"listeners": [listener]})
