"""Which records of the log a backfill waits for in the table."""

import pytest

from api.log.log_range import is_of
from mqlake.records.messages import LogRecord, Message, message_headers, message_key
from mqlake.records.versions import Headers

HEADERS = message_headers(Message("acme", "a", b"", 1, False, bytes(16), "c", 0, "local/g"))


@pytest.mark.parametrize(
    ("key", "headers", "is_waited_for"),
    [
        (message_key("acme", "a"), HEADERS, True),
        (message_key("beta", "a"), HEADERS, False),
        (message_key("acmeplus", "a"), HEADERS, False),
        (message_key("acme", "a"), [], False),
        (b"\0rules/1", [], False),
        (None, [], False),
    ],
)
def test_only_messages_of_the_tenant_are_waited_for(
    key: bytes | None, headers: Headers, is_waited_for: bool
) -> None:
    assert is_of("acme", LogRecord(0, 0, 0, key, b"", headers)) == is_waited_for
