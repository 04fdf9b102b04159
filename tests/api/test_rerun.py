"""Reruns of dead letters, as far as they need no Spark."""

from sqlglot import exp, parse_one

from api.jobs.jobs import Job
from api.log.appending import LogAppender
from api.rules.checking import compiled
from api.rules.dead_letters import Wanted
from api.rules.history import text
from api.rules.rerun import RerunOrder, _Rerun
from mqlake.tables.catalogue import DEAD_LETTERS, MESSAGES


def test_a_message_is_found_by_its_place_and_tenant() -> None:
    """A log that was made anew uses its places again, for messages of any tenant."""
    rule = compiled("SELECT payload.t AS t FROM 'plant/+'")
    order = RerunOrder(1, rule, Wanted("acme", "hot"), 100)
    job = Job("j", "rerun", "acme", "hot", 0)
    run = _Rerun(job, order, None, LogAppender(str), None, lambda: None)  # type: ignore[arg-type]
    (given,) = run._evaluated(7, [5]).relations.values()
    assert given is not None
    query = parse_one(given.rows, dialect="databricks")
    read = {}
    for table in query.find_all(exp.Table):
        select = table.find_ancestor(exp.Select)
        assert select is not None
        conditions = select.args["where"].this.flatten()
        read[table.name] = [one.sql() for one in conditions]
    assert read.keys() == {DEAD_LETTERS.name, MESSAGES.name}
    of_tenant = parse_one(f"tenant = {text('acme')}", dialect="databricks").sql()
    for conditions in read.values():
        assert of_tenant in conditions
