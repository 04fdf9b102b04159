"""The MQTT client that finds out whether a node is well."""

import asyncio
from pathlib import Path

import pytest

from ingest.balancer.probe import Probe, ProbeCredentials
from tests.ingest.balancer.harness import brokers, until
from tests.ingest.gateway.harness import free_port, running_gateway

pytestmark = [pytest.mark.programs, pytest.mark.anyio]


async def test_a_node_that_is_well_passes_and_keeps_nothing(mosquitto: str, tmp_path: Path) -> None:
    async with brokers(mosquitto, tmp_path, 1) as (broker,):
        outcomes = await asyncio.gather(
            *(Probe(30.0, 5).run("127.0.0.1", broker.port) for _ in range(20))
        )
        assert {outcome.reason for outcome in outcomes} == {""}
        assert all(outcome.seconds > 0 for outcome in outcomes)
        broker.process.kill()
        broker.process.wait()
        outcome = await Probe(30.0, 5).run("127.0.0.1", broker.port)
        assert (outcome.reason, outcome.definite) == ("connection refused", True)


async def test_a_gateway_of_ours_passes() -> None:
    async with running_gateway() as harness:
        outcome = await Probe(30.0, 5).run("127.0.0.1", harness.port)
        assert outcome.reason == ""
        await until(lambda: not len(harness.gateway.sessions))


async def test_who_is_not_let_in_is_told() -> None:
    async with running_gateway(allow_anonymous=False) as harness:
        outcome = await Probe(30.0, 5).run("127.0.0.1", harness.port)
        assert "CONNECT refused" in outcome.reason


async def test_the_client_says_who_it_is() -> None:
    asked: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.set_result(await reader.read(1024))
        writer.close()

    port = free_port()
    server = await asyncio.start_server(serve, "127.0.0.1", port)
    try:
        await Probe(30.0, 5, credentials=ProbeCredentials("jo", b"secret")).run("127.0.0.1", port)
        assert asked.result().endswith(b"\x00\x02jo\x00\x06secret")
    finally:
        server.close()


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ([b""], "no message within"),
        ([b"\x20\x02\x00\x00", b""], "no message within"),
        ([b"\x20\x02\x00\x05"], "CONNECT refused"),
        ([b"\x20\x02\x00\x00\x90\x03\x00\x01\x80"], "refused"),
        ([b"\xf0\x00"], ""),
        ([None], "connection closed before Connack"),
    ],
)
async def test_a_node_that_is_not_well_fails(answers: list[bytes | None], reason: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in answers:
            await reader.read(1024)
            if answer:
                writer.write(answer)
            elif answer is None:
                break
        else:
            await reader.read()
        writer.close()

    port = free_port()
    server = await asyncio.start_server(serve, "127.0.0.1", port)
    try:
        outcome = await Probe(0.2 if "within" in reason else 20.0, 5).run("127.0.0.1", port)
        assert outcome.reason
        assert reason in outcome.reason
        assert not outcome.definite
    finally:
        server.close()
