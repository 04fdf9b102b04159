"""Opens connections without end, and holds them: the other side of `bench --only flood`.

python -m bench.load.flooder HOST:PORT COUNT KIND

Kinds: `silent` connections send nothing, `connect` ones log in as a client each and stay, and
`partial` ones send the first half of a CONNECT. One JSON object goes to standard output when each
has come to something: how many were `let in`, `refused` (with a reason) and `closed`. The end of
standard input ends it.
"""

import asyncio
import json
import os
import sys
from collections import Counter
from typing import Final

from ingest.open_files import raise_open_files
from ingest.protocol.encoder import encode
from ingest.protocol.packets import MQTT_3_1_1, Connect

KINDS: Final = ("silent", "connect", "partial")
IN_FLIGHT: Final = 500
ANSWER_SECONDS: Final = 30.0
CONNACK_BYTES: Final = 4


class Flood:
    """Many connections to one address.

    Attributes:
        outcomes: Connections by outcome.
    """

    def __init__(self, address: str, kind: str) -> None:
        host, _, port = address.rpartition(":")
        self._place = host, int(port)
        self._kind = kind
        self._held: list[asyncio.StreamWriter] = []
        self.outcomes: Counter[str] = Counter()

    async def open(self, count: int) -> None:
        """Open `count` connections, some hundred at once."""
        numbers = iter(range(count))

        async def take() -> None:
            for number in numbers:
                self.outcomes[await self._open(number)] += 1

        async with asyncio.TaskGroup() as tasks:
            for _ in range(min(IN_FLIGHT, count)):
                tasks.create_task(take())

    async def _open(self, number: int) -> str:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                reader, writer = await asyncio.open_connection(*self._place)
        except (OSError, TimeoutError):
            return "closed"
        self._held.append(writer)
        packet = encode(Connect(f"flood-{os.getpid()}-{number}", MQTT_3_1_1), MQTT_3_1_1)
        if self._kind == "silent":
            return "let in"
        if self._kind == "partial":
            writer.write(packet[: len(packet) // 2])
            return "let in"
        writer.write(packet)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                answer = await reader.readexactly(CONNACK_BYTES)
        except (OSError, EOFError, TimeoutError):
            return "closed"
        return "refused" if answer[-1] else "let in"


async def _run(address: str, count: int, kind: str) -> None:
    flood = Flood(address, kind)
    await flood.open(count)
    sys.stdout.write(json.dumps(flood.outcomes) + "\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.read)


def main(arguments: list[str]) -> None:
    """Flood, and hold it."""
    address, count, kind = arguments
    raise_open_files()
    asyncio.run(_run(address, int(count), kind))


if __name__ == "__main__":
    main(sys.argv[1:])
