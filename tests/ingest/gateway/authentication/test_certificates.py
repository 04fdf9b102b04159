import pytest

from ingest.gateway.authentication.certificates import username_of_certificate


@pytest.mark.parametrize(
    ("common_name", "username"),
    [
        ("device-7", "device-7"),
        ("Rene\u0301", "Ren\u00e9"),
        ("a\x00b", None),
        ("", None),
        (None, None),
    ],
)
def test_common_name_is_the_user_name(common_name: str | None, username: str | None) -> None:
    assert username_of_certificate(common_name) == username
