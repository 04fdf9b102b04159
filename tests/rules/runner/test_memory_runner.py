"""The runner on a log in memory: what it remembers, and what it says of what is gone."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Any

import pytest

from mqlake.clock import SystemClock
from mqlake.errors import OperationalError
from mqlake.log.admin import LogAdmin
from mqlake.log.contract import LogAccess
from mqlake.log.memory import MemoryLog, MemoryLogReader, MemoryLogWriter, MemoryRangeReader
from mqlake.records.access import ApiKey, access_key, encode_access
from mqlake.records.messages import (
    ACCESS,
    DEAD_LETTERS,
    HEADER_OUTPUT,
    INBOUND,
    METRICS,
    OUTPUTS,
    RULES,
    RUNNER,
)
from mqlake.records.outputs import Output, Position, output_headers
from mqlake.records.rules import RulesKey, rules_key
from rules.runner.checkpoint import CHECKPOINT_KEY, Checkpoint, ReadPosition, encode_checkpoint
from rules.runner.runner import Runner
from rules.runner.settings import RulesSettings
from rules.runner.target import KafkaTarget
from tests.mqlake.log_lines import lines_with
from tests.rules.runner.memory import MemoryCluster
from tests.waiting import until

pytestmark = pytest.mark.anyio


class MemoryAdmin(LogAdmin):
    """Asks a log in memory."""

    def __init__(self, log: MemoryLog) -> None:
        self._log = log
        self.asked: Counter[str] = Counter()

    def ends(self, log_topic: str) -> dict[int, int]:
        self.asked[log_topic] += 1
        return {n: one.end for n, one in enumerate(self._log.partitions(log_topic))}

    def begins(self, log_topic: str) -> dict[int, int]:
        return {n: one.begin for n, one in enumerate(self._log.partitions(log_topic))}

    def ensure(self, log_topic: str, config: Mapping[str, str], partitions: int = 1) -> None:
        self._log.create(log_topic, partitions)


class NotedReader(MemoryLogReader):
    """Is found by its log topic."""

    def __init__(self, log: MemoryLog, readers: dict[str, MemoryLogReader]) -> None:
        super().__init__(log)
        self._readers = readers

    async def start(self, log_topic: str, *args: Any) -> dict[int, int]:
        self._readers[log_topic] = self
        return await super().start(log_topic, *args)


class Scene:
    """A log, and a runner that works on it."""

    def __init__(self) -> None:
        self.log = MemoryLog()
        self.admin = MemoryAdmin(self.log)
        for log_topic in (OUTPUTS, INBOUND, RULES, RUNNER, METRICS, DEAD_LETTERS, ACCESS):
            self.log.create(log_topic, 1)
        self.readers: dict[str, MemoryLogReader] = {}
        self.stops: list[str] = []
        self.working: asyncio.Task[None] | None = None

    def define(self, rule: str, version: int = 1, *, topic: str = "out", **more: Any) -> None:
        definition = {
            "id": rule,
            "tenant": "default",
            "version": version,
            "sql": "SELECT * FROM 't'",
            "actions": [{"function": "republish", "args": {"topic": topic}}],
            "created_at": 1,
            "updated_at": 1,
            **more,
        }
        key = rules_key(RulesKey("version", "default", rule, version))
        self._store(RULES, key, json.dumps(definition).encode(), [])

    def put(self, rule: str, offset: int, row: bytes = b"{}") -> Output:
        output = Output(
            "default", rule, 1, row, Position("i", 0, offset, 0), 0, "t", "c", bytes(16)
        )
        headers = output_headers(output)
        self._store(OUTPUTS, f"default/{rule}".encode(), output.row, headers)
        return output

    def give(self, key_id: str, *topic_filters: str) -> None:
        """Let a key have these topics; with none it is revoked."""
        key = ApiKey("editor", "", "", 0, "", topic_filters=topic_filters)
        value = encode_access(key) if topic_filters else None
        self._store(ACCESS, access_key("key", key_id), value, [])

    def refusals(self) -> list[str]:
        """Return why rows were not sent."""
        return [dict(one.headers)["error"].decode() for one in self.log.records(DEAD_LETTERS)]

    def note_published(self, output: Output) -> None:
        """Leave in the log what an earlier run has published for an output."""
        action_id = f"{output.rule}/{output.version}/{output.position}/0".encode()
        headers = [("chain", output.rule.encode()), (HEADER_OUTPUT, action_id)]
        self._store(INBOUND, b"default/out", b"{}", headers)

    def note_killed(self, reached: int = 0) -> None:
        """Leave the checkpoint of a run that was killed when it had come so far."""
        value = encode_checkpoint(Checkpoint({0: ReadPosition(reached)}, {}, {0: 0}))
        self._store(RUNNER, CHECKPOINT_KEY, value, [])

    def has_written(self, checkpoints: int) -> bool:
        return len(self.log.records(RUNNER)) >= checkpoints

    def published(self) -> int:
        return len(self.log.records(INBOUND))

    async def start(self, **more: Any) -> Runner:
        log = self.log
        writer = MemoryLogWriter(log)
        access = LogAccess(writer, lambda: NotedReader(log, self.readers), MemoryRangeReader(log))
        settings = RulesSettings(checkpoint_seconds=0.1, **more)
        clock = SystemClock()
        target = KafkaTarget(writer, MemoryCluster(log), clock)
        self.runner = Runner(
            settings,
            access,
            self.admin,
            target,
            clock,
            self.stops.append,
            "1",
        )
        await self.runner.start()
        self.working = asyncio.create_task(self.runner.run())
        return self.runner

    async def close(self) -> None:
        if self.working is not None:
            self.working.cancel()
            await asyncio.gather(self.working, return_exceptions=True)
            await self.runner.close(is_orderly=False)

    def _store(
        self, log_topic: str, key: bytes, value: bytes | None, headers: list[tuple[str, bytes]]
    ) -> None:
        self.log.store(log_topic, key, value, headers, 0, 0)


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    made = Scene()
    yield made
    await made.close()


async def test_a_log_that_has_lost_what_the_last_run_has_seen_is_refused(scene: Scene) -> None:
    scene.define("r")
    scene.put("r", 0)
    scene.note_killed(reached=2)
    with pytest.raises(
        OperationalError, match=r"mqlake\.outputs has lost its end: partition 0 ends at offset 1"
    ):
        await scene.start()
    assert scene.published() == 0


async def test_what_was_published_is_remembered_while_somebody_may_ask(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rules.runner.checkpoints.IDLE_CHECKPOINT_SECONDS", 0.0)
    scene.define("r")
    outputs = [scene.put("r", offset) for offset in range(4)]
    for output in outputs[1:]:
        scene.note_published(output)
    scene.note_killed()
    scene.log.hold_reports(INBOUND)
    runner = await scene.start()
    await until(lambda: runner.outputs == 4)
    begun = len(scene.log.records(RUNNER))
    # The first is not in the log yet, so the lane is not done with what the last run had.
    await until(partial(scene.has_written, begun + 2))
    scene.log.release_reports()
    await until(lambda: scene.published() >= 4)
    await until(partial(scene.has_written, len(scene.log.records(RUNNER)) + 2))
    assert scene.published() == 4, "each once"


@pytest.mark.promise
async def test_what_was_published_is_found_whatever_the_clocks_of_others_say(scene: Scene) -> None:
    """Records of the log have the times of those who wrote them: here of one two minutes ahead."""
    scene.define("r")
    ahead_ms = scene.log.now_ms() + 120_000
    scene.log.store(INBOUND, b"default/t", b"of a gateway", [], ahead_ms, 0)
    outputs = [scene.put("r", offset) for offset in range(4)]
    for output in outputs[:3]:
        scene.note_published(output)
    scene.note_killed()
    await scene.start()
    await until(lambda: scene.published() > 4)
    actions = [dict(one.headers).get(HEADER_OUTPUT) for one in scene.log.records(INBOUND)]
    assert actions == [None, *(f"r/1/i:0:{offset}:0/0".encode() for offset in range(4))]


async def test_what_retention_has_taken_unread_is_counted(scene: Scene) -> None:
    scene.define("r")
    for offset in range(10):
        scene.put("r", offset)
    scene.log.remove_before(OUTPUTS, 0, 7)
    scene.note_killed()
    runner = await scene.start()
    await until(lambda: scene.published() == 3)
    assert runner.figures()["lost"] == 7


async def test_actions_that_are_read_late_are_waited_for(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rules.runner.definitions.KNOWN_SECONDS", 0.05)
    scene.define("other")
    await scene.start()
    # The machine has so much to do that what is in the log of rules is not read for long.
    scene.readers[RULES].pause()
    scene.define("r")
    scene.put("r", 1)
    asked = scene.admin.asked[RULES]
    await until(lambda: scene.admin.asked[RULES] > asked)
    assert scene.published() == 0
    scene.readers[RULES].resume()
    await until(lambda: scene.published() == 1)


async def test_an_output_without_actions_holds_nobody_up(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rules.runner.definitions.KNOWN_SECONDS", 0.05)
    scene.define("r")
    await scene.start()
    scene.put("gone", 1)
    scene.put("r", 2)
    await until(lambda: scene.published() == 1)


async def test_rows_are_sent_with_the_rights_that_their_rules_maker_has_then(scene: Scene) -> None:
    scene.give("1", "plant/#")
    scene.define("r", topic="plant/${n}", made_by="key:1")
    scene.define("ours", topic="ours", made_by="api-token")
    await scene.start()
    scene.put("r", 1, b'{"n": "a"}')
    await until(lambda: scene.published() == 1)
    scene.give("1")
    scene.give("2", "plant/a")  # who may publish when that was read
    scene.define("next", topic="plant/a", made_by="key:2")
    scene.put("next", 2)
    await until(lambda: scene.published() == 2)
    scene.put("r", 3, b'{"n": "a"}')
    scene.put("ours", 4)
    await until(lambda: scene.published() == 3)
    await until(lambda: len(scene.refusals()) == 1)
    assert scene.refusals() == ["the rule was made by key:1, who may not use the API any more"]


async def test_no_line_of_the_log_shows_what_rows_hold_or_secrets(scene: Scene) -> None:
    """One process carries out the rules of all tenants, and says what fails of each."""
    hidden, written, sent = "hidden-value", "written-value", "sent-value"
    secrets = {"hook": {"value": hidden, "servers": ["http://127.0.0.1:9"]}}
    url = "http://127.0.0.1:9/${$secret.hook}"
    headers = {"Authorization": f"Bearer {written}", "X-Value": "${n}"}
    for rule, function, args in (
        ("refused", "http", {"url": url, "headers": headers}),
        ("unknown", "http", {"url": url.replace("hook", "other"), "headers": headers}),
        (
            "nowhere",
            "sql",
            {"connection": "none", "statement": f"INSERT INTO t VALUES ('{written}', ${{n}})"},
        ),
        ("wild", "republish", {"topic": "a/${n}/${wild}", "payload": written}),
        ("broken", "nothing", {"n": written}),
    ):
        scene.define(rule, actions=[{"function": function, "args": args}])
    with lines_with(lambda line: any(one in line for one in (hidden, written, sent))) as lines:
        await scene.start(secrets=secrets)
        for offset, rule in enumerate(("refused", "unknown", "nowhere", "wild", "broken")):
            scene.put(rule, offset, json.dumps({"n": sent, "wild": "#"}).encode())
        await until(lambda: len(scene.refusals()) == 5)
    assert lines.count > 0
    assert lines.found == []


async def test_a_row_goes_to_no_topic_that_its_rules_maker_may_not_publish_to(scene: Scene) -> None:
    scene.give("1", "plant/+/out", "lab/#")
    scene.define("r", topic="${to}", made_by="key:1")
    await scene.start()
    topics = ("plant/a/out", "other", "plant/a/b/out", "lab", "$lab/a")
    for offset, topic in enumerate(topics):
        scene.put("r", offset, json.dumps({"to": topic}).encode())
    await until(lambda: scene.published() + len(scene.refusals()) == len(topics))
    assert [one.key for one in scene.log.records(INBOUND)] == [
        b"default/plant/a/out",
        b"default/lab",
    ]
    assert scene.refusals() == [
        f"the maker of the rule may not publish to {topic!r}"
        for topic in ("other", "plant/a/b/out", "$lab/a")
    ]


async def test_a_maker_who_is_read_late_is_waited_for_in_order(scene: Scene) -> None:
    scene.define("r", topic="plant/a", made_by="key:1")
    scene.define("gone", topic="plant/a", made_by="key:2")
    await scene.start()
    scene.readers[ACCESS].pause()
    scene.give("1", "plant/#")
    asked = scene.admin.asked[ACCESS]
    for offset in range(1500):
        scene.put("r", offset)
    await until(lambda: scene.admin.asked[ACCESS] > asked)
    assert (scene.published(), scene.refusals()) == (0, [])
    scene.readers[ACCESS].resume()
    await until(lambda: scene.published() == 1500)
    sent = [dict(one.headers)[HEADER_OUTPUT].decode() for one in scene.log.records(INBOUND)]
    assert sent == [f"r/1/i:0:{offset}:0/0" for offset in range(1500)]
    for offset in range(1500, 1503):
        scene.put("gone", offset)
    await until(lambda: len(scene.refusals()) == 3)
    assert scene.admin.asked[ACCESS] == asked + 2, "the log is asked once of who is not there"


async def test_a_row_goes_to_no_topic_with_more_levels_than_clients_may_use(scene: Scene) -> None:
    scene.define("made", topic="a/${to}")
    scene.define("written", topic="a/b/c/d")
    await scene.start(max_topic_levels=3)
    scene.put("made", 0, b'{"to": "b/c"}')
    scene.put("made", 1, b'{"to": "b/c/d"}')
    scene.put("written", 2)
    await until(lambda: scene.published() + len(scene.refusals()) == 3)
    assert [one.key for one in scene.log.records(INBOUND)] == [b"default/a/b/c"]
    assert scene.refusals() == ["topic name has 4 levels, expected at most 3: 'a/b/c/d'"] * 2
