"""A gateway under attack, and a healthy client that must not notice.

One for each file of cases: they run in turn, and each ends by `Town.is_well`.
"""

from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from ingest.gateway.settings.gateway import GatewaySettings
from ingest.protocol.packets import Connack, Connect, Suback, Subscribe, Subscription
from ingest.protocol.reason_codes import RETURN_CODE_OF_REASON, ConnackReasonCode
from mqlake.records.audit import AUDIT_EVENT
from mqlake.security.credentials import make_verifier, set_user
from tests.ingest.gateway.harness import Client, Harness, running_gateway, until
from tests.ingest.gateway.test_rights import OPEN
from tests.mqlake.log_lines import lines_with

PASSWORD = b"open sesame"
USERS = ("ann", "bob", "healthy", "+", "a#", "a/b", "$SYS", "%c")
RULES = """
[[rules]]
effect = "allow"
actions = ["connect"]
users = ["healthy"]

[[rules]]
effect = "allow"
actions = ["publish", "subscribe", "receive"]
topics = ["healthy/#"]
users = ["healthy"]
"""


def tells_password(line: str) -> bool:
    """Tell whether a line has the password that all have here, or what was made of it."""
    text = PASSWORD.decode()
    return any(one in line for one in (text, text.upper(), b64encode(PASSWORD).decode()))


@dataclass
class Town:
    """What the cases of a file attack."""

    harness: Harness
    healthy: Client
    rights: Path
    numbers: Any = field(default_factory=count)

    @property
    def port(self) -> int:
        return self.harness.port

    async def connect(self, name: str = "ann", client_id: str = "", **more: Any) -> Client:
        """Log in as a user, by the port of TCP."""
        return await Client.connect(
            self.port,
            client_id or f"{name}-{next(self.numbers)}",
            username=name,
            password=PASSWORD,
            **more,
        )

    async def is_well(self) -> None:
        """Assert that the healthy client is connected, and that its messages come through."""
        payload = b"%d" % next(self.numbers)
        await self.healthy.publish("healthy/round", payload, 1)
        assert (await self.healthy.message()).payload == payload
        assert self.harness.gateway.status.health()[0]
        assert not self.harness.task.done()

    async def apply(self, rules: str) -> None:
        """Put rights in force; who is connected goes by them."""
        self.rights.write_text(rules)
        before = self.rights_reads()
        self.harness.gateway.reloading.begin()
        await until(lambda: self.rights_reads() > before)

    def rights_reads(self) -> int:
        """Return how often the audit says that the rights were read again."""
        self.harness.gateway.context.events.flush()
        audit = self.harness.events(AUDIT_EVENT)
        return sum(one["target"] == str(self.rights) for one in audit)


@asynccontextmanager
async def town(folder: Path, rules: str = OPEN, **settings: Any) -> AsyncIterator[Town]:
    """Run a gateway with users and rights, and its healthy client."""
    credentials, rights = folder / "users", folder / "rights.toml"
    for name in USERS:
        set_user(credentials, name, make_verifier(PASSWORD.decode(), iterations=4096))
    rights.write_text(rules)
    files: dict[str, Any] = {"credentials_file": credentials, "rights_file": rights}
    settings.setdefault("failed_logins_per_minute", 0)
    with lines_with(tells_password) as lines:
        async with running_gateway(**files, **settings) as harness:
            healthy = await Client.connect(
                harness.port, "healthy", username="healthy", password=PASSWORD
            )
            await healthy.subscribe("healthy/#", 1)
            yield Town(harness, healthy, rights)
        assert lines.count, "else nothing was looked at"
    assert not lines.found, "no line tells a password, whatever was tried"


def limits(**limits: Any) -> dict[str, Any]:
    return {"limits": GatewaySettings.model_validate({"limits": limits}).limits}


async def refused(port: int, connect: Connect, *codes: ConnackReasonCode) -> None:
    """Assert that a CONNECT is answered by one of these codes, in the words of its version."""
    client = await Client.open(port, connect.protocol_level)
    client.send(connect)
    answer = (await client.expect(Connack)).reason_code
    if connect.protocol_level < 5:
        in_3 = {RETURN_CODE_OF_REASON[code] for code in codes}
        assert RETURN_CODE_OF_REASON[answer] in in_3, answer
    else:
        assert answer in codes, answer
    assert await client.is_closed()


async def ask(client: Client, *filters: str, qos: int = 0) -> list[int]:
    """Subscribe; return the reason codes."""
    packet_id = client.next_packet_id()
    client.send(Subscribe(packet_id, [Subscription(one, qos) for one in filters]))
    suback = await client.expect(Suback)
    assert suback.packet_id == packet_id
    return [int(code) for code in suback.reason_codes]
