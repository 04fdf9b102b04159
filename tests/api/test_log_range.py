"""Which records of the log a backfill waits for in the table."""

from typing import Any

import pytest

from api.log_range import _is_message
from mqlake.records import Headers, Message, message_headers, message_key

HEADERS = message_headers(Message("acme", "a", b"", 1, False, bytes(16), "c", 0, "local/g"))


class Record:
    """Of librdkafka: what is asked of one."""

    def __init__(self, key: bytes | None, headers: Headers) -> None:
        self.key = lambda: key
        self.headers = lambda: headers


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
    record: Any = Record(key, headers)
    assert _is_message(record, b"acme/") == is_waited_for
