from __future__ import annotations

from enum import IntEnum

import pytest

from ingest.protocol import reason_codes
from ingest.protocol.reason_codes import (
    REASON_OF_RETURN_CODE,
    RETURN_CODE_OF_REASON,
    ConnackReasonCode,
    ConnectReturnCode,
    DisconnectReasonCode,
    PubackReasonCode,
)

ENUMERATIONS = [
    item
    for item in vars(reason_codes).values()
    if isinstance(item, type) and issubclass(item, IntEnum) and item is not IntEnum
]


@pytest.mark.parametrize("enumeration", ENUMERATIONS)
def test_no_name_is_an_alias_of_another(enumeration: type[IntEnum]) -> None:
    assert len(enumeration.__members__) == len(list(enumeration))


@pytest.mark.parametrize("enumeration", ENUMERATIONS)
def test_codes_fit_into_a_byte(enumeration: type[IntEnum]) -> None:
    assert all(0 <= code <= 255 for code in enumeration)


def test_the_same_value_has_its_own_name_in_each_packet() -> None:
    assert PubackReasonCode(0).name == "SUCCESS"
    assert DisconnectReasonCode(0).name == "NORMAL_DISCONNECTION"


def test_every_connack_code_has_an_entry_for_3_x() -> None:
    assert set(RETURN_CODE_OF_REASON) == set(ConnackReasonCode)


def test_every_return_code_survives_the_way_there_and_back() -> None:
    assert set(REASON_OF_RETURN_CODE) == set(ConnectReturnCode)
    for return_code, reason_code in REASON_OF_RETURN_CODE.items():
        assert RETURN_CODE_OF_REASON[reason_code] is return_code
