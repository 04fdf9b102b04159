"""Append the batches of a query to Delta tables, each batch once (`BatchAppend.java`)."""

from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from streaming.jvm.bridge import java_class, java_rows
from streaming.log.checkpoints import query_id


class BatchAppends:
    """The appends of one run of a query.

    Args:
        checkpoint: Folder of the query's checkpoint.
    """

    def __init__(self, checkpoint: Path) -> None:
        self._checkpoint = checkpoint
        self._by_path: dict[Path, Any] = {}

    def append(self, rows: DataFrame, path: Path, batch_id: int) -> None:
        """Append a batch to the table in a folder, unless it is there.

        Raises:
            AnalysisException: The table cannot take these columns.
        """
        append = self._by_path.get(path)
        if append is None:
            append = self._by_path[path] = batch_append(rows.sparkSession, path)
        append.append(java_rows(rows), query_id(self._checkpoint), batch_id)


def batch_append(spark: SparkSession, path: Path) -> Any:
    """Return Java's function for foreachBatch that appends to the table in a folder."""
    return java_class(spark, "mqlake.spark.BatchAppend")(str(path))
