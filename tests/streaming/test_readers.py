"""Who keeps the log from deleting: what its readers have noted in the log itself."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, cast

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
from mqlake.log.kafka_writer import KafkaLogWriter
from mqlake.records import EVENTS, INBOUND
from streaming.checkpoints import write_positions, write_settled
from streaming.jobs import router, rules
from streaming.log_retention import Reader
from streaming.readers import FederationPlaces, LastRecord, Readers
from streaming.settings import StreamingSettings

if TYPE_CHECKING:
    from streaming.rules.controller import RuleController
    from streaming.rules.plans import Run

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


class Controller:
    """Rules as far as readers of the log ask for them."""

    def __init__(self) -> None:
        self.runs: tuple[Run, ...] = ()
        self.first = {INBOUND: {0: 100}, EVENTS: {0: 3}}


def test_nothing_goes_that_router_or_rules_may_fall_back_behind(
    tmp_path: Path, streaming_settings: StreamingSettings
) -> None:
    """What is noted once a second does not count when the machine loses power."""
    settings = streaming_settings.model_copy(update={"data_dir": tmp_path})
    for query in (router, rules):
        write_positions(query.checkpoint(settings), {INBOUND: {0: 900}, EVENTS: {0: 90}})
    controller = cast("RuleController", Controller())
    readers = Readers(settings, controller, dict, dict, lambda: None, lambda: None)

    def places() -> dict[str, object]:
        found = {reader.name: reader.places for reader in readers() or ()}
        return {name: found[name] for name in (router.NAME, rules.NAME)}

    assert places() == {
        router.NAME: {INBOUND: None},
        rules.NAME: {INBOUND: {0: 100}, EVENTS: {0: 3}},
    }
    for query in (router, rules):
        write_settled(query.checkpoint(settings), {INBOUND: {0: 800}, EVENTS: {0: 80}})
    assert places() == {
        router.NAME: {INBOUND: {0: 800}},
        rules.NAME: {INBOUND: {0: 800}, EVENTS: {0: 80}},
    }


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
