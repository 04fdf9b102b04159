"""Which statements `mqlake sql` lets through."""

import pytest

from mqlake.cli.select_check import QueryError, check_select

ALLOWED = [
    "SELECT topic, count(*) FROM messages GROUP BY topic",
    "select * from messages where topic like 'plant/%' and ts > now() - interval 1 hour limit 5",
    "SELECT m.topic FROM messages m JOIN messages n ON m.id = n.id",
    "WITH hot AS (SELECT topic FROM messages) SELECT count(*) FROM hot",
    "SELECT topic, row_number() OVER (PARTITION BY topic ORDER BY ts) FROM messages",
    "SELECT topic FROM messages UNION ALL SELECT client_id FROM messages",
    "SELECT 1",
    "SELECT * FROM default.messages",
    "SELECT level FROM messages LATERAL VIEW explode(split(topic, '/')) t AS level",
    "SELECT * FROM range(3)",
    "SELECT count(*) FROM messages;",
]

REFUSED = [
    "INSERT INTO messages SELECT * FROM messages",
    "DELETE FROM messages",
    "UPDATE messages SET qos = 2",
    "MERGE INTO messages USING messages s ON true WHEN MATCHED THEN DELETE",
    "DROP TABLE messages",
    "TRUNCATE TABLE messages",
    "CREATE TABLE t AS SELECT * FROM messages",
    "CREATE TEMPORARY VIEW v AS SELECT 1",
    "ALTER TABLE messages ADD COLUMN x INT",
    "OPTIMIZE messages",
    "VACUUM messages",
    "SET spark.sql.shuffle.partitions = 1",
    "USE default",
    "SHOW TABLES",
    "DESCRIBE messages",
    "EXPLAIN SELECT 1",
    "ADD JAR '/tmp/x.jar'",
    "CACHE TABLE messages",
    "SELECT 1; SELECT 2",
    "SELECT 1; DROP TABLE messages",
    "SELECT java_method('java.lang.System', 'exit', 1)",
    "SELECT reflect('java.lang.Runtime', 'getRuntime')",
    "SELECT try_reflect('java.util.UUID', 'randomUUID')",
    "SELECT * FROM delta.`/etc`",
    "SELECT * FROM parquet.`/etc/passwd`",
    "SELECT * FROM text.`/etc/passwd`",
    "SELECT * FROM `/etc/passwd`",
    "SELECT * FROM spark_catalog.default.messages",
    "SELECT * FROM other.messages",
    "SELECT * FROM secrets",
    "SELECT * FROM messages WHERE id IN (SELECT id FROM secrets)",
    "SELECT (SELECT max(x) FROM secrets)",
    "WITH hot AS (SELECT * FROM secrets) SELECT * FROM hot",
    "SELECT * FROM read_files('/etc')",
    "SELECT * FROM identifier('secrets')",
    "SELECT TRANSFORM(topic) USING 'cat' FROM messages",
    "SELECT topic FROM messages UNION SELECT name FROM secrets",
    "",
    "SELEC topic FROM messages",
    "SELECT topic FROM",
]


@pytest.mark.parametrize("sql", ALLOWED)
def test_a_query_over_our_tables_is_let_through(sql: str) -> None:
    check_select(sql)


@pytest.mark.parametrize("sql", REFUSED)
def test_anything_else_is_refused(sql: str) -> None:
    with pytest.raises(QueryError):
        check_select(sql)


@pytest.mark.parametrize(
    ("sql", "sentence"),
    [
        ("SELECT topic FROM\n WHERE", "line 2"),
        ("SELECT *\nFROM secrets", "there is no table secrets (line 2, column 6)"),
        ("SELECT reflect('a', 'b')", "function reflect is not allowed here (line 1, column 8)"),
        ("SELECT 'open", "line 1, column"),
        ("SELECT 1; SELECT 2", "got 2 statements, expected one SELECT"),
        ("DROP TABLE messages", "the statement is DROP, expected a SELECT"),
    ],
)
def test_the_error_says_what_and_where(sql: str, sentence: str) -> None:
    with pytest.raises(QueryError) as caught:
        check_select(sql)
    assert sentence in str(caught.value)
