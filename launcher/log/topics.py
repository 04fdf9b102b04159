"""Make the log ready for the gateways; apart, so that the supervisor stays small.

python -m launcher.log.topics SERVERS SECURITY_FILE PARTITIONS SHARDS RETENTION_BYTES
    DURABILITY TIMEOUT_SECONDS GATEWAY…

No name of a security file: the log has no login.
"""

import asyncio
import sys
from pathlib import Path

from ingest.gateway.peers.hosts import LinuxHost
from ingest.gateway.process.retiring import withdraw_routes_of_ended
from mqlake.errors import MqlakeError
from mqlake.log.admin import ensure_log_topics
from mqlake.log.durability import Durability
from mqlake.log.kafka_reader import KafkaLogReader
from mqlake.log.kafka_writer import KafkaLogWriter
from mqlake.log.security import LogServers


def main(arguments: list[str]) -> int:
    """Return the exit code; the reason of a failure is the last line on standard error."""
    address, security_file, *arguments = arguments
    servers = LogServers(address, Path(security_file) if security_file else None)
    partitions, shards, retention_bytes, durability, timeout_seconds, *gateways = arguments
    try:
        ensure_log_topics(
            servers,
            inbound_partitions=int(partitions),
            session_shards=int(shards),
            retention_bytes=int(retention_bytes),
            timeout_seconds=float(timeout_seconds),
            durability=Durability(durability),
        )
        asyncio.run(_withdraw(servers, gateways))
    except MqlakeError as exc:
        sys.stderr.write(f"{exc}\n")
        return 1
    return 0


async def _withdraw(servers: str, gateways: list[str]) -> None:
    """The last run may have had more gateways than this one."""
    writer, reader = KafkaLogWriter(servers), KafkaLogReader(servers)
    try:
        await withdraw_routes_of_ended(reader, writer, gateways, LinuxHost())
    finally:
        await reader.close()
        await writer.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
