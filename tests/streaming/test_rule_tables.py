"""Tables of rules, as the lake makes them."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from streaming.settings.lake import LakeSettings
from streaming.tables import grow_rule_table, rule_table_path

pytestmark = pytest.mark.spark


def test_a_table_whose_making_was_cut_short_by_a_kill_is_made(
    spark: SparkSession, streaming_settings: LakeSettings, tmp_path: Path
) -> None:
    settings = streaming_settings.model_copy(update={"data_dir": tmp_path})
    log = rule_table_path(settings, "rule_cut_short") / "_delta_log"
    (log / "_staged_commits").mkdir(parents=True)
    (log / f".{0:020}.json.290d9dbc.tmp").write_text("{")
    try:
        types = grow_rule_table(spark, settings, "rule_cut_short", {"x": "bigint"})
        assert types["x"] == "bigint"
        assert spark.table("rule_cut_short").count() == 0
        again = grow_rule_table(spark, settings, "rule_cut_short", {"y": "string"})
        assert again == {**types, "y": "string"}
    finally:
        spark.sql("DROP TABLE IF EXISTS rule_cut_short")
