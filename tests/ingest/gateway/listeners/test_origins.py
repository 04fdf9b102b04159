import pytest

from ingest.gateway.listeners.origins import is_welcome


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        (None, "mqtt.example.org:8083"),  # no browser
        ("http://127.0.0.1:8080", "127.0.0.1:8083"),
        ("http://localhost:8080", "127.0.0.1:8083"),
        ("http://LOCALHOST:8080", "localhost"),
        ("http://[::1]:8080", "localhost:8083"),
        ("https://192.168.1.5", "192.168.1.5:8084"),
        ("http://[fe80::1]:8080", "[fe80:0::1]:8083"),
    ],
)
def test_without_a_list_pages_of_the_same_machine_may_connect(
    origin: str | None, host: str
) -> None:
    assert is_welcome(origin, host, ())


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("https://evil.example", "127.0.0.1:8083"),
        ("https://evil.example", "evil.example:8083"),  # a name that leads here
        ("http://evil.example:8083", "localhost:8083"),
        ("http://127.0.0.1.evil.example", "127.0.0.1:8083"),
        ("http://localhost.evil.example", "localhost:8083"),
        ("http://localhost@evil.example", "localhost:8083"),
        ("http://192.168.1.6", "192.168.1.5:8083"),
        ("http://127.0.0.1:8080", "192.168.1.5:8083"),
        ("null", "127.0.0.1:8083"),  # a file, a frame in a sandbox
        ("null", "null"),
        ("", ""),
        ("", "127.0.0.1:8083"),
        ("http://[::1", "[::1"),
        ("file://", "127.0.0.1:8083"),
        ("chrome-extension://abcdef", "localhost:8083"),
        ("http://127.0.0.1, https://evil.example", "127.0.0.1:8083"),
        ("http://2130706433", "127.0.0.1:8083"),
        ("http://0x7f.1", "127.0.0.1:8083"),
        ("http://\u2460.example", "127.0.0.1:8083"),
    ],
)
def test_without_a_list_others_may_not(origin: str, host: str) -> None:
    assert not is_welcome(origin, host, ())


@pytest.mark.parametrize(
    ("origin", "is_listed"),
    [
        ("https://example.org", True),
        (None, True),
        ("https://example.org:8443", False),
        ("http://example.org", False),
        ("https://example.org.evil.example", False),
        ("http://127.0.0.1:8080", False),  # who writes a list names all
        ("null", False),
    ],
)
def test_with_a_list_only_its_pages_may(origin: str | None, is_listed: bool) -> None:
    assert is_welcome(origin, "127.0.0.1:8083", ("https://example.org",)) == is_listed


@pytest.mark.parametrize("origin", [None, "null", "https://anywhere.example"])
def test_all_may_where_that_is_written_out(origin: str | None) -> None:
    assert is_welcome(origin, "mqtt.example.org", ("*",))
