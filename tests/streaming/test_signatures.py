"""Both languages know the same activations as ours."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import SecretStr, ValidationError

from mqlake.records.messages import HEADER_RULE
from mqlake.records.rules import DECIDED_KEY, RulesKey, rules_key
from streaming.jvm.bridge import java_map
from streaming.jvm.vocabulary import KEY_OPTION
from streaming.rules.signatures import Signatures, rules_client_config
from streaming.settings.lake import LakeSettings

if TYPE_CHECKING:
    from mqlake.records.versions import Headers

SECRET = "a key of thirty-two bytes, or more"
KEY = rules_key(RulesKey("activation", "default", "r"))
VALUE = b'{"spans":[]}'


def signatures(folder: Path, key: str = SECRET) -> Signatures:
    return Signatures(key, folder / "rules-signed")


def test_an_activation_is_ours_as_it_was_signed_and_not_otherwise(tmp_path: Path) -> None:
    ours = signatures(tmp_path)
    headers = ours.headers(KEY, VALUE)
    assert ours.is_ours(KEY, VALUE, [(HEADER_RULE, b"1"), *headers])
    other = rules_key(RulesKey("activation", "default", "s"))
    unsigned: Headers = []
    assert not ours.is_ours(KEY, VALUE, unsigned)
    assert not ours.is_ours(KEY, VALUE + b" ", headers)
    assert not ours.is_ours(other, VALUE, headers)
    assert not ours.is_ours(KEY, VALUE, signatures(tmp_path, SECRET + "!").headers(KEY, VALUE))


@pytest.mark.parametrize(
    ("key", "value"),
    [(KEY, None), (DECIDED_KEY, VALUE), (rules_key(RulesKey("definition", "t", "r")), VALUE)],
)
def test_what_puts_nothing_in_force_is_not_signed(
    tmp_path: Path, key: bytes, value: bytes | None
) -> None:
    ours = signatures(tmp_path)
    assert ours.headers(key, value) == []
    assert ours.is_ours(key, value, [])


def test_what_is_not_signed_counts_until_all_is(tmp_path: Path) -> None:
    ours = signatures(tmp_path)
    assert ours.is_first
    ours.note_signed()
    assert not ours.is_first
    assert not signatures(tmp_path).is_first
    assert signatures(tmp_path, SECRET + "!").is_first
    assert SECRET not in (tmp_path / "rules-signed").read_text()


def test_a_short_key_is_refused_and_none_is_no_key(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="at least 32"):
        LakeSettings(rules_key=SecretStr("short"))
    settings = LakeSettings(data_dir=tmp_path)
    assert Signatures.of(settings) is None
    assert KEY_OPTION not in rules_client_config(settings)


@pytest.mark.spark
def test_java_knows_the_same(streaming_settings: LakeSettings, spark: Any) -> None:
    settings = streaming_settings.model_copy(update={"rules_key": SecretStr(SECRET)})
    ours = Signatures.of(settings)
    assert ours is not None
    ((_, code),) = ours.headers(KEY, VALUE)
    config = java_map(spark, rules_client_config(settings))
    jvm = spark.sparkContext._jvm
    java = jvm.mqlake.rules.Signature(config)
    assert java.isOurs(KEY, VALUE, code)
    assert not java.isOurs(KEY, VALUE + b" ", code)
    assert not java.isOurs(KEY + b"r", VALUE, code)
    assert not java.isOurs(KEY, VALUE, None)
    assert java.isOurs(KEY, None, None)
    assert java.isOurs(DECIDED_KEY, VALUE, None)
    assert KEY_OPTION not in dict(jvm.mqlake.log.ClientOptions.of(config))
    unsigned = jvm.mqlake.rules.Signature(java_map(spark, rules_client_config(streaming_settings)))
    assert unsigned.isOurs(KEY, VALUE, None)
