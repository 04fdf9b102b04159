"""Who keeps the log from deleting: what its readers have noted in the log itself."""

from collections.abc import Iterator

import pytest

from mqlake.federation_records import (
    CONFIG,
    FEDERATION,
    KEY,
    FederationCheckpoint,
    LinkPlaces,
    encode_checkpoint,
)
from mqlake.local.kafka import running_kafka
from mqlake.log.admin import LogAdmin
from mqlake.log.kafka import KafkaLogWriter
from mqlake.records import INBOUND
from streaming.log_retention import Reader
from streaming.readers import FederationPlaces, LastRecord

CHECKPOINT = FederationCheckpoint(
    epoch=1,
    read={0: 50, 1: 60},
    streams=[],
    links={2: LinkPlaces({0: 40, 1: 70}), 3: LinkPlaces({0: 45, 1: 70})},
)


def missing() -> bytes | None:
    raise LookupError(FEDERATION)


def test_a_log_without_federation_is_kept_for_none() -> None:
    assert FederationPlaces(missing)() is None


def test_nothing_goes_that_a_neighbour_has_not_had_or_a_new_run_reads_again() -> None:
    places = FederationPlaces(lambda: encode_checkpoint(CHECKPOINT))()
    assert places == Reader("federation", {INBOUND: {0: 40, 1: 60}})


@pytest.mark.parametrize("value", [None, b"", b"{}", b'{"v": 2, "epoch": 1}'])
def test_nothing_goes_while_it_is_not_known(value: bytes | None) -> None:
    assert FederationPlaces(lambda: value)() == Reader("federation", {INBOUND: None})


@pytest.fixture(scope="module")
def bootstrap_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_kafka(tmp_path_factory.mktemp("log")) as server:
        yield server.bootstrap_servers


@pytest.mark.kafka
@pytest.mark.anyio
async def test_the_last_record_is_read_from_the_log(bootstrap_servers: str) -> None:
    last = LastRecord(bootstrap_servers, FEDERATION, KEY)
    with pytest.raises(LookupError, match=FEDERATION):
        last()
    LogAdmin(bootstrap_servers).ensure(FEDERATION, CONFIG)
    assert last() is None
    writer = KafkaLogWriter(bootstrap_servers)
    for epoch in (1, 2):
        value = encode_checkpoint(FederationCheckpoint(epoch, {}, [], {}))
        await writer.append_durably(FEDERATION, KEY, value, [])
    assert last() == value
    assert LastRecord(bootstrap_servers, FEDERATION, b"another")() is None
    await writer.close()
