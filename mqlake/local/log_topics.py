"""Make the log topics as soon as the log serves; apart, so that the supervisor stays small.

python -m mqlake.local.log_topics SERVERS PARTITIONS RETENTION_MS RETENTION_BYTES TIMEOUT_SECONDS
"""

import sys

from ingest.log.admin import ensure_log_topics
from mqlake.errors import MqlakeError


def main(arguments: list[str]) -> int:
    """Return the exit code; the reason of a failure is the last line on standard error."""
    servers, partitions, retention_ms, retention_bytes, timeout_seconds = arguments
    try:
        ensure_log_topics(
            servers,
            inbound_partitions=int(partitions),
            retention_ms=int(retention_ms),
            retention_bytes=int(retention_bytes),
            timeout_seconds=float(timeout_seconds),
        )
    except MqlakeError as exc:
        sys.stderr.write(f"{exc}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
