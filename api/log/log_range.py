"""Look whether a range of the log holds messages, which the history may not have yet."""

from api.log.appending import CLIENT_ID
from mqlake.log.blocking import BlockingReader
from mqlake.records.messages import INBOUND, LogRecord, is_message


def has_messages(bootstrap_servers: str, tenant: str, partition: int, begin: int, end: int) -> bool:
    """Tell whether `mqlake.inbound` holds a tenant's message from one offset up to before another.

    Those of others do not count: they may have been deleted from the table, with their tenant.

    Raises:
        LogError: It does not answer.
    """
    found = False

    def take(record: LogRecord) -> bool:
        nonlocal found
        found = is_of(tenant, record)
        return found

    with BlockingReader(bootstrap_servers, CLIENT_ID) as reader:
        end = min(end, reader.admin.ends(INBOUND).get(partition, 0))
        reader.read(INBOUND, {partition: (begin, end)}, take)
    return found


def is_of(tenant: str, record: LogRecord) -> bool:
    """Return whether a record is a tenant's message."""
    key = record.key or b""
    return key.startswith(tenant.encode() + b"/") and is_message(key, dict(record.headers))
