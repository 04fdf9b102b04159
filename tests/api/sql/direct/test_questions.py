"""Which queries are answered without Spark, and that they read the caller's rows alone."""

from collections.abc import Sequence

import pytest

from api.sql.checking import check
from api.sql.direct.questions import SmallQuestion

SMALL = (
    "SELECT count(*) FROM messages",
    "SELECT * FROM messages LIMIT 10",
    "SELECT m.topic, payload FROM messages m WHERE m.topic = 'a' AND ts > now() - INTERVAL 1 HOUR",
    "SELECT topic, count(*) AS n, max(ts) FROM messages GROUP BY topic ORDER BY n DESC LIMIT 5",
    "SELECT date_trunc('hour', ts) AS h, count(*) AS n FROM messages GROUP BY ALL ORDER BY 1",
    (
        "SELECT topic_level(topic, 2) AS city, count(*) FROM messages"
        " WHERE topic_matches(topic, 'demo/+/#') GROUP BY city HAVING count(*) > 1"
    ),
    "SELECT DISTINCT client_id FROM sessions WHERE NOT connected ORDER BY client_id",
    "SELECT count(DISTINCT topic) FROM retained WHERE topic LIKE 'a/%' OR qos IN (1, 2)",
    "SELECT event, reason FROM events WHERE ts BETWEEN '2026-01-01' AND current_timestamp",
)
FOR_SPARK = (
    "SELECT 1",
    "SELECT count(*) FROM messages, retained",
    "SELECT count(*) FROM (SELECT topic FROM messages)",
    "SELECT topic FROM messages WHERE topic IN (SELECT topic FROM retained)",
    "SELECT topic FROM messages UNION SELECT topic FROM retained",
    "SELECT topic FROM messages VERSION AS OF 1",
    "SELECT count(*) FROM rule_readings",
    "SELECT count(*) FROM reference_machines",
    "SELECT topic, nothing FROM messages",
    "SELECT x.topic FROM messages",
    "SELECT topic, count(*) FROM messages",
    "SELECT topic, qos FROM messages GROUP BY topic",
    "SELECT topic FROM messages HAVING topic = 'a'",
    "SELECT topic FROM messages ORDER BY payload",
    "SELECT DISTINCT payload FROM messages",
    "SELECT topic AS a, qos AS a FROM messages ORDER BY a",
    "SELECT topic FROM messages ORDER BY 2",
    "SELECT topic FROM messages WHERE topic = 5",
    "SELECT topic FROM messages WHERE qos = '1'",
    "SELECT topic FROM messages WHERE qos = 99999999999999999999",
    "SELECT topic FROM messages WHERE ts > '2026-02-30'",
    "SELECT topic FROM messages WHERE ts > 'tomorrow'",
    "SELECT topic FROM messages WHERE ts > now() - INTERVAL 1 MONTH",
    # Times that Python has not.
    "SELECT topic FROM messages WHERE ts > now() - INTERVAL 999999 WEEK",
    "SELECT topic FROM messages WHERE ts < now() + INTERVAL '999999' WEEKS",
    "SELECT topic FROM messages WHERE ts < '9999-12-31' + INTERVAL 1 DAY",
    "SELECT topic FROM messages WHERE ts > TIMESTAMP '0001-01-01' - INTERVAL 1 DAY",
    "SELECT topic FROM messages WHERE topic LIKE 'a\\\\_'",
    "SELECT topic FROM messages WHERE payload = payload",
    "SELECT payload:temp::double FROM messages",
    "SELECT avg(qos) FROM messages",
    "SELECT sum(log_offset) FROM messages",
    "SELECT upper(topic) AS t FROM messages",
    "SELECT length(topic) FROM messages",
    "SELECT count(*) OVER () AS n FROM messages",
    "SELECT topic FROM messages GROUP BY ROLLUP (topic)",
    "SELECT count(*) FILTER (WHERE retain) AS n FROM messages",
    "SELECT topic FROM messages AS m(a)",
    "SELECT topic_matches(topic, client_id) AS m FROM messages",
)


def question(sql: str, topic_filters: Sequence[str] | None = None) -> SmallQuestion | None:
    return check(sql, "o'neil", topic_filters=topic_filters).question


@pytest.mark.parametrize("sql", SMALL)
def test_a_small_question_reads_rows_of_its_tenant(sql: str) -> None:
    found = question(sql)
    assert found is not None
    assert f" FROM {found.table} WHERE tenant = 'o''neil'" in found.select


@pytest.mark.parametrize("sql", FOR_SPARK)
def test_all_else_is_for_spark(sql: str) -> None:
    assert question(sql) is None


def test_the_audit_log_is_for_spark() -> None:
    checked = check("SELECT count(*) FROM audit_log", "default", is_administrator=True)
    assert checked.question is None


def test_rights_to_some_topics_are_a_condition() -> None:
    found = question("SELECT topic FROM messages WHERE topic = 'x' OR true", ["a/#", "b/+"])
    assert found is None  # `true` alone is no condition here
    found = question("SELECT topic FROM messages WHERE topic = 'x' OR retain", ["a/#", "b/+"])
    assert found is not None
    tenant, topics, own = found.select.split(" WHERE ")[1].split(" AND ", 2)
    assert tenant == "tenant = 'o''neil'"
    assert topics.startswith("(false OR (topic ~ '(?s)^a(?:/.*)?$') OR (topic ~")
    assert own.endswith("((topic = 'x') OR retain)")
    assert question("SELECT topic FROM messages", []).select.endswith("AND (false)")  # type: ignore[union-attr]


def test_what_is_denied_stays_denied() -> None:
    found = question("SELECT topic FROM messages WHERE topic NOT LIKE 'a%' AND qos NOT IN (1)")
    assert found is not None
    assert found.select.endswith("((topic NOT LIKE 'a%') AND (NOT (qos IN (1))))")


def test_texts_stay_texts() -> None:
    found = question("SELECT topic FROM messages WHERE topic = 'a'' OR true --' AND id = '\\\\'")
    assert found is not None
    assert found.select.endswith("((topic = 'a'' OR true --') AND (id = '\\'))")


def test_limit_and_offset_are_within_what_may_be_shown() -> None:
    found = question("SELECT topic FROM messages LIMIT 20 OFFSET 3")
    assert found is not None
    assert found.first(10).endswith(" LIMIT 10 OFFSET 3")
    assert found.first(100).endswith(" LIMIT 20 OFFSET 3")
