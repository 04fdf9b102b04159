"""A program: batches of retained messages that are larger than the heap, into the state tables.

Says behind each batch how many messages are retained, and how many batches came.
"""

import json
import random
import sys
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from mqlake.clock import SystemClock
from mqlake.records.messages import INBOUND, mqtt_header
from mqlake.records.versions import HEADER_MQTT
from mqlake.tables.catalogue import RETAINED
from streaming.engine.spark import small_session, start_spark
from streaming.settings.lake import LakeSettings
from streaming.tables.state import StateWriter
from streaming.tables.tables import create_tables
from tests.streaming.conftest import JARS
from tests.streaming.written_checkpoints import note_end

MESSAGES: Final = 25_000
PAYLOAD_BYTES: Final = 10_000
_HEAP_MB: Final = 480
"""The least that Spark starts with."""
RANDOM_BYTES: Final = 1_000_003
"""Payloads are parts of so many: random, else their pages are small, and made soon."""


def batch(spark: SparkSession, begin: int) -> DataFrame:
    """Return records as Kafka's source gives them, each of a topic of its own."""
    mqtt = mqtt_header(4, 1, retain=True, dup=False)
    place = F.col("id") * 7 * PAYLOAD_BYTES % (RANDOM_BYTES - PAYLOAD_BYTES)
    source = F.lit(random.Random(begin).randbytes(RANDOM_BYTES))
    return spark.range(MESSAGES, numPartitions=1).select(
        F.concat(F.lit("default/large/"), F.col("id").cast("string")).cast("binary").alias("key"),
        F.substring(source, (place + 1).cast("int"), PAYLOAD_BYTES).alias("value"),
        F.array(
            F.struct(F.lit(HEADER_MQTT).alias("key"), F.lit(mqtt).alias("value")),
        ).alias("headers"),
        F.lit(INBOUND).alias("topic"),
        F.lit(0).alias("partition"),
        (F.col("id") + begin).alias("offset"),
        F.current_timestamp().alias("timestamp"),
    )


def main(data_dir: Path) -> None:
    settings = LakeSettings(data_dir=data_dir, jars_dir=JARS, master="local[2]")
    session, jvm = start_spark(settings, "lake", data_dir / "lake", _HEAP_MB)
    create_tables(session, settings)
    spark, checkpoint = small_session(session), data_dir / "checkpoint"
    checkpoint.mkdir()
    (checkpoint / "metadata").write_text(json.dumps({"id": "large"}))
    state = StateWriter(settings, checkpoint, SystemClock(), wait=lambda _: None)
    for batch_id in range(2):
        begin = batch_id * MESSAGES
        note_end(checkpoint, batch_id, {INBOUND: {"0": begin + MESSAGES}})
        state(batch(spark, begin), batch_id)
        rows = spark.table(RETAINED.name).where(F.col("log_offset") >= begin)
        sys.stdout.write(f"{rows.count()} {batch_id + 1}\n")
    sys.stdout.flush()
    session.stop()
    jvm.kill()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
