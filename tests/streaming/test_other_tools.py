"""The examples of docs/tables.md: other tools read the tables."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from api.relations.catalog import FUNCTIONS, VIEWS, made_by
from mqlake.tables.catalogue import TABLES
from streaming.settings.lake import LakeSettings
from streaming.tables.tables import create_tables

pytestmark = pytest.mark.spark

TEXT = (Path(__file__).parents[2] / "docs" / "tables.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
EXPECTED = {
    "to_pandas": [r'plant/1/temp .*"temp": 21'],
    "duckdb": [r"plant/1/temp.*│ +2 │ +21\.5", r"plant/2/temp.*│ +1 │ +30\.0"],
    "SparkSession": [r"plant/1/temp +22\.0", r"plant/2/temp +30\.0"],
}


@pytest.fixture(scope="module")
def settings(
    spark: SparkSession,
    streaming_settings: LakeSettings,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[LakeSettings]:
    for table in TABLES:
        spark.sql(f"DROP TABLE IF EXISTS {table.name}")
    data_dir = tmp_path_factory.mktemp("tools") / "data"
    settings = streaming_settings.model_copy(update={"data_dir": data_dir})
    create_tables(spark, settings)
    for name in (*(f"mqlake.{view}" for view in VIEWS), *FUNCTIONS):
        for statement in made_by(name, data_dir / "tables"):
            spark.sql(statement)
    (data_dir / "connect-token").write_text("token\n")
    for topic, temp in (("plant/1/temp", 21), ("plant/1/temp", 22), ("plant/2/temp", 30)):
        spark.sql(
            "INSERT INTO messages (tenant, topic, payload, ts) VALUES "
            f"""('default', '{topic}', encode('{{"temp": {temp}}}', 'utf-8'), now())"""
        )
    yield settings
    for table in TABLES:
        spark.sql(f"DROP TABLE {table.name}")


@pytest.mark.parametrize("tool", EXPECTED)
def test_an_example_works_as_it_stands(
    settings: LakeSettings, connect_port: int, tool: str
) -> None:
    (example,) = [code for code in EXAMPLES if tool in code]
    code = example.replace("localhost:15002", f"localhost:{connect_port}")
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SPARK_", "PYSPARK_"))
    }
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=settings.data_dir.parent,
        env=environment,
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for pattern in EXPECTED[tool]:
        assert re.search(pattern, done.stdout), done.stdout
