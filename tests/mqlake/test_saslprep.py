import pytest

from mqlake.security.saslprep import MAX_PREPARED_CHARACTERS, UnpreparableText, prepare


@pytest.mark.parametrize(
    ("text", "prepared"),
    [  # the first five are the examples of RFC 4013, 3
        ("I\u00adX", "IX"),
        ("user", "user"),
        ("USER", "USER"),
        ("\u00aa", "a"),
        ("\u2168", "IX"),
        ("with a space", "with a space"),
        ("no\u00a0break", "no break"),
        ("e\u0301te\u0301", "\u00e9t\u00e9"),
        ("\u0627\u0628", "\u0627\u0628"),
    ],
)
def test_text_takes_its_normal_form(text: str, prepared: str) -> None:
    assert prepare(text, "user name") == prepared
    assert prepare(prepared, "user name") == prepared


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("\u0007", "holds a control character"),
        ("\u0627\u0031", "begins or ends against its direction"),
        ("\u0627a\u0628", "mixes directions"),
        ("", "is empty"),
        ("\u00ad", "is empty"),
        ("a\nb", "holds a control character"),
        ("a\x00b", "holds a control character"),
        ("\ue000", "holds a private use character"),
        ("\U0001f511", "Unicode 3.2 does not assign"),
        ("a" * (MAX_PREPARED_CHARACTERS + 1), "has 1025 characters, expected 1024 at most"),
        # One character that stands for eighteen.
        ("\ufdfa" * 100, "has 1800 characters, expected 1024 at most"),
    ],
)
def test_what_saslprep_forbids_is_refused(text: str, reason: str) -> None:
    with pytest.raises(UnpreparableText, match=f"^the password .*{reason}"):
        prepare(text, "password")


def test_message_does_not_show_the_text() -> None:
    with pytest.raises(UnpreparableText) as error:
        prepare("secret\n", "password")
    assert "secret" not in str(error.value)
