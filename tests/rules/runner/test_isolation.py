"""A target that is away costs bounded memory and nobody else's time, and loses nothing."""

import json
import threading
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from launcher.ports import free_ports
from launcher.testing.systems import await_condition
from mqlake.records.messages import INBOUND, RUNNER
from rules.runner.checkpoint import decode_checkpoint
from rules.runner.ownership import GROUP
from rules.runner.settings import RulesSettings
from tests.rules.runner.harness import Stage, headers_of
from tests.rules.runner.postgres import Postgres, running_postgres
from tests.rules.runner.web import Web, running_web

pytestmark = pytest.mark.kafka

OUTPUTS = 50_000
MOST_QUEUED = 2 * RulesSettings.model_fields["max_queued_outputs"].default + 1
"""In memory: of one action what it has read and what has come meanwhile, and one of the other."""
LOOPBACK = {"MQLAKE_RULES_HTTP__ALLOWED_NETWORKS": '["127.0.0.0/8"]'}


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with running_postgres() as server:
        yield server


def count(postgres: Postgres, table: str) -> int:
    return int(postgres.query(f"SELECT count(*) FROM {table}")[0])


def passes(stage: Stage, rule: str, outputs: int) -> None:
    """Put outputs one at a time, each when the message of the one before has come."""
    consumer = Consumer(
        {"bootstrap.servers": stage.servers, "group.id": "t", "enable.auto.commit": False}
    )
    ends = [
        TopicPartition(INBOUND, p, consumer.get_watermark_offsets(TopicPartition(INBOUND, p))[1])
        for p in range(2)
    ]
    consumer.assign(ends)
    consumer.poll(0.5)
    for _ in range(outputs):
        (output,) = stage.put(rule, [{"n": 1}])
        wanted = f"{rule}/1/{output.position}/0".encode()
        while True:
            message = consumer.poll(120)
            assert message is not None, "the other rule holds it up"
            if headers_of(message).get("output") == wanted:
                break
    consumer.close()


def checkpointed_behind(stage: Stage, rule: str) -> bool:
    records = stage.read(RUNNER, lambda message: True)
    return any(key.rule == rule for key in decode_checkpoint(records[-1].value() or b"").behind)


@pytest.mark.campaign("test_memory_runner.py has targets that are away")
def test_database_that_is_away_gets_everything_when_it_is_back(
    stage: Stage, postgres: Postgres
) -> None:
    postgres.query("CREATE TABLE missed (id text PRIMARY KEY, n int)")
    statement = "INSERT INTO missed VALUES (${$output}, ${n}) ON CONFLICT DO NOTHING"
    args = {
        "connection": "warehouse",
        "statement": statement,
        "batch": 500,
        "retry": {"max_delay_seconds": 1.0},
    }
    stage.define("missed", [{"function": "sql", "args": args}])
    stage.define("quick", [{"function": "republish", "args": {"topic": "quick"}}])
    runner = stage.run_runner(postgres.connection())
    stage.put("missed", [{"n": -1}])
    await_condition(lambda: count(postgres, "missed") == 1, "the database has the first")
    passes(stage, "quick", 10)

    postgres.stop()
    stage.put("missed", [{"n": n, "filling": "x" * 200} for n in range(OUTPUTS)])
    await_condition(lambda: runner.figure("outputs") > OUTPUTS, "all are seen")
    # Behind the other one it would wait for the database, which is not back yet.
    passes(stage, "quick", 100)
    await_condition(lambda: runner.figure("queued") > 0, "it says how many wait in memory")
    assert runner.figure("queued") <= MOST_QUEUED
    await_condition(lambda: checkpointed_behind(stage, "missed"), "its position is noted")

    # The position outlives the process.
    runner.kill()
    runner = stage.run_runner(postgres.connection())
    postgres.start()
    await_condition(lambda: count(postgres, "missed") == OUTPUTS + 1, "all are there")
    assert postgres.query("SELECT count(DISTINCT n) FROM missed") == [str(OUTPUTS + 1)]
    await_condition(lambda: not checkpointed_behind(stage, "missed"), "it has caught up")
    stage.put("missed", [{"n": OUTPUTS}])
    await_condition(lambda: count(postgres, "missed") == OUTPUTS + 2, "it takes part again")
    assert not stage.dead_letters("missed")
    assert runner.stop() == 0


@pytest.mark.campaign("test_memory_runner.py has targets that are away")
def test_web_server_that_is_away_and_slow_gets_everything(stage: Stage) -> None:
    web = Web(port=free_ports(1)[0])
    args = {"url": f"{web.url}/hook", "retry": {"max_delay_seconds": 0.5}, "timeout_seconds": 60}
    stage.define("hook", [{"function": "http", "args": args}])
    runner = stage.run_runner({**LOOPBACK, "MQLAKE_RULES_MAX_QUEUED_OUTPUTS": "100"})
    total = 2_000
    stage.put("hook", [{"n": n} for n in range(total)])
    await_condition(lambda: checkpointed_behind(stage, "hook"), "it falls behind")
    stop = threading.Event()

    def publish_on() -> None:
        number = total
        while not stop.is_set() and number < total + 500:
            stage.put("hook", [{"n": number}])
            number += 1
            stop.wait(0.01)

    publisher = threading.Thread(target=publish_on)
    publisher.start()
    with running_web(web):
        await_condition(lambda: len(web.asked) > 300, "it begins to catch up")
        web.answers = [503, 429, 500, 502] * 5
        await_condition(lambda: numbers(web) == set(range(total + 500)), "it has all")
        publisher.join()
        keys = [asked.headers["Idempotency-Key"] for asked in web.asked]
        # Once each, but for the 20 that were told to come again.
        assert len(keys) <= len(set(keys)) + 20
        await_condition(lambda: not checkpointed_behind(stage, "hook"), "it has caught up")
        assert runner.stop() == 0
    assert not stage.dead_letters("hook")


def numbers(web: Web) -> set[int]:
    return {json.loads(asked.body)["n"] for asked in list(web.asked)}


def test_deleted_rule_no_longer_waits_for_its_target(stage: Stage) -> None:
    url = f"http://127.0.0.1:{free_ports(1)[0]}/"
    stage.define("gone", [{"function": "http", "args": {"url": url}}])
    runner = stage.run_runner({**LOOPBACK, "MQLAKE_RULES_MAX_QUEUED_OUTPUTS": "100"})
    stage.put("gone", [{"n": n} for n in range(1_000)])
    await_condition(lambda: checkpointed_behind(stage, "gone"), "it falls behind")
    stage.delete("gone")
    await_condition(lambda: not checkpointed_behind(stage, "gone"), "it is forgotten")
    await_condition(lambda: runner.figure("queued") == 0, "nothing waits")
    assert runner.figure("dropped") > 0
    assert runner.stop() == 0


def test_second_runner_of_a_name_refuses_to_start(stage: Stage) -> None:
    first = stage.run_runner()
    second = stage.start_runner()
    assert second.process.wait(120) == 1
    assert "a runner called rules works here already" in second.log_file.read_text(encoding="utf-8")
    stage.define("named", [{"function": "republish", "args": {"topic": "named"}}])
    stage.put("named", [{"n": n} for n in range(100)])
    await_condition(lambda: len(stage.published("named")) >= 100, "they are published")
    assert first.stop() == 0


def members(stage: Stage) -> int:
    admin = AdminClient({"bootstrap.servers": stage.servers})
    return len(admin.describe_consumer_groups([GROUP])[GROUP].result(60).members)


def test_second_runner_stands_by_and_takes_over(stage: Stage) -> None:
    stage.define("shared", [{"function": "republish", "args": {"topic": "shared"}}])
    first = stage.run_runner()
    second = stage.start_runner(name="second")
    await_condition(lambda: members(stage) == 2, "both are there")

    def publishes(total: int) -> None:
        stage.put("shared", [{"n": n} for n in range(100)])
        await_condition(lambda: len(stage.published("shared")) >= total, "they are published")
        assert len(stage.published("shared")) == total

    publishes(100)

    def stands_by() -> bool:
        beat = second.heartbeat()
        return beat is not None and not beat.healthy and "another runner" in beat.detail

    await_condition(stands_by, "the second stands by")
    assert first.is_healthy()
    first.kill()
    await_condition(second.is_healthy, "it takes over")
    publishes(200)
    assert second.stop() == 0
