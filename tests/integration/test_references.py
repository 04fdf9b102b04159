"""Reference tables and detections through the real engine, which is killed meanwhile."""

import json

import pytest

from api.log.appending import LogAppender
from api.log.following import Followed
from api.references.changes import ReferenceChanges
from api.references.materialised import MaterialisedReferences, Reference
from api.references.reading import read_upload
from api.references.tables import ReferenceTables
from launcher.testing.systems import await_condition
from mqlake.clock import SystemClock
from mqlake.records.messages import RULES
from rules.model import Rule
from tests.integration.engine import Engine

pytestmark = [
    pytest.mark.campaign("tests/streaming/test_references.py joins and kills the same way"),
    pytest.mark.usefixtures("lake"),
    pytest.mark.system,
]

JOINED = 'SELECT m.site AS site, payload.n AS n FROM "r/+" JOIN machines AS m ON m.id = topic(2)'


class Api:
    """What the API has of references, on the engine's log."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.view = MaterialisedReferences()
        log = LogAppender(engine.servers)
        self.changes = ReferenceChanges(engine.folder, log, self.view, SystemClock())
        self.tables = ReferenceTables(engine.folder)

    def put(self, name: str, text: str) -> int:
        upload = read_upload(text.encode(), "csv")
        return self.changes.put("default", name, upload, "")

    def await_answer(self, name: str, number: int) -> Reference:
        found: Reference | None = None

        def is_answered() -> bool:
            nonlocal found
            records = [
                Followed(RULES, record.offset(), record.key(), record.value())
                for record in self._engine.read(RULES)
            ]
            assert self.view.take(records, is_old=False) == []
            found = self.view.get("default", name)
            return found is not None and found.is_answered and found.number == number

        await_condition(is_answered, f"{name} is answered")
        assert found is not None
        return found


@pytest.fixture(scope="module")
def api(engine: Engine) -> Api:
    return Api(engine)


def a_rule(name: str, sql: str) -> Rule:
    return Rule(id=name, version=1, created_at=1, updated_at=1, sql=sql)


def rows(engine: Engine, name: str) -> list[dict[str, object]]:
    return [json.loads(output.row) for output in engine.outputs() if output.rule == name]


def test_rules_join_the_newest_version_and_say_when_it_is_gone(engine: Engine, api: Api) -> None:
    engine.define(a_rule("joined", JOINED))
    failed = engine.await_state("joined", 1, "failed")
    assert failed.error is not None
    assert "machines" in failed.error

    found = api.await_answer("machines", api.put("machines", "id,site\n7,Ulm\n"))
    assert (found.state, found.version) == ("ready", 0)
    engine.await_state("joined", 1, "running")
    engine.publish("r/7", b'{"n": 1}')
    engine.publish("r/8", b'{"n": 1}')
    engine.producer.flush(30)
    await_condition(lambda: rows(engine, "joined") == [{"site": "Ulm", "n": 1}], "joined")

    found = api.await_answer("machines", api.put("machines", "id,site\n7,Bonn\n8,Kiel\n"))
    assert found.version == 1
    engine.publish("r/8", b'{"n": 2}')
    engine.producer.flush(30)
    await_condition(lambda: {"site": "Kiel", "n": 2} in rows(engine, "joined"), "joined")

    api.await_answer("machines", api.changes.delete("default", "machines"))
    failed = engine.await_state("joined", 1, "failed")
    assert failed.error is not None
    assert "machines" in failed.error
    assert not (engine.folder / "tables" / "reference_machines").exists()
