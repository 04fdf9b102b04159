"""Who keeps the log from deleting: what its readers have noted in the log itself."""

from pathlib import Path

import pytest

from launcher.log.kafka import Brokers
from mqlake.log.admin import LogAdmin
from mqlake.log.kafka_writer import KafkaLogWriter
from mqlake.records.federation import (
    CONFIG,
    FEDERATION,
    KEY,
    FederationCheckpoint,
    LinkPosition,
    encode_checkpoint,
)
from mqlake.records.messages import EVENTS, INBOUND
from streaming import queries
from streaming.log.checkpoints import checkpoint, committed, write_positions, write_settled
from streaming.reading.log_retention import RetainingReader
from streaming.reading.readers import FederationPositions, LastRecord, Readers
from streaming.rules.in_force import RulesInForce
from streaming.settings.lake import LakeSettings
from tests.streaming.rule_control import MemoryLog, a_controller

CHECKPOINT = FederationCheckpoint(
    epoch=1,
    read={0: 50, 1: 60},
    streams=[],
    links={2: LinkPosition({0: 40, 1: 70}), 3: LinkPosition({0: 45, 1: 70})},
)


def missing() -> bytes | None:
    raise LookupError(FEDERATION)


def test_a_log_without_federation_is_kept_for_none() -> None:
    assert FederationPositions(missing)() is None


def test_nothing_goes_that_a_neighbour_has_not_had_or_a_new_run_reads_again() -> None:
    positions = FederationPositions(lambda: encode_checkpoint(CHECKPOINT))()
    assert positions == RetainingReader("federation", {INBOUND: {0: 40, 1: 60}})


@pytest.mark.parametrize("value", [None, b"", b"{}", b'{"v": 2, "epoch": 1}'])
def test_nothing_goes_while_it_is_not_known(value: bytes | None) -> None:
    assert FederationPositions(lambda: value)() == RetainingReader("federation", {INBOUND: None})


def test_nothing_goes_that_router_or_rules_may_fall_back_behind(
    tmp_path: Path, streaming_settings: LakeSettings
) -> None:
    """What is noted once a second does not count when the machine loses power."""
    settings = streaming_settings.model_copy(update={"data_dir": tmp_path})
    folders = [checkpoint(tmp_path, query) for query in queries.OF_THE_ROUTER]
    for folder in folders:
        write_positions(folder, {INBOUND: {0: 900, 1: 900}, EVENTS: {0: 90}})
    log = MemoryLog()
    log.define("r", 1)
    a_controller(log).step()
    log.next = 0
    in_force = RulesInForce(log)
    readers = Readers(settings, in_force, dict, lambda: None, lambda: None)
    assert readers() is None, "it is not known which rules there are"
    in_force.step()
    starts = log.activations()["r"].spans[0].sources[INBOUND].starts

    def positions() -> dict[str, object]:
        found = {reader.name: reader for reader in readers() or ()}
        assert not found[queries.ROUTER].misses, "it tells itself what it misses"
        return {name: found[name].positions for name in (queries.ROUTER, queries.RULES)}

    assert positions() == {
        queries.ROUTER: {INBOUND: None},
        queries.RULES: {INBOUND: dict(enumerate(starts))},
    }
    for folder in folders:
        write_settled(folder, {INBOUND: {0: 800, 1: 0}, EVENTS: {0: 80}})
    assert positions() == {
        queries.ROUTER: {INBOUND: {0: 800, 1: 0}},
        queries.RULES: {INBOUND: {0: 800, 1: starts[1]}},
    }
    for folder in folders:
        write_settled(folder, {INBOUND: {0: 800, 1: 0, 2: 7}, EVENTS: {0: 80}})
    more = {INBOUND: {0: 800, 1: starts[1], 2: 7}}
    assert positions()[queries.RULES] == more, "of a partition that has come since it needs no more"
    found = {one.name: one for one in readers.of_messages(committed) or ()}
    assert found[queries.ROUTER].positions == {INBOUND: {0: 900, 1: 900, 2: 7}}
    assert {queries.HISTORY, queries.STATE} < found.keys()


@pytest.mark.kafka
@pytest.mark.anyio
async def test_the_last_record_is_read_from_the_log(brokers: Brokers) -> None:
    bootstrap_servers = brokers.bootstrap_servers
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
