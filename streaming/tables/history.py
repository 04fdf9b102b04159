"""The history: inbound records to rows of the table `messages`.

inbound(key, value, headers, partition, offset, timestamp) -> columns of
`mqlake.tables.catalogue.MESSAGES`
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from mqlake.records.messages import (
    FLAG_DUP,
    FLAG_QOS,
    FLAG_RETAIN,
    HEADER_CLIENT_ID,
    HEADER_ID,
    HEADER_ORIGIN,
    HEADER_PROPERTIES,
    HEADER_USERNAME,
    IS_MESSAGE,
)
from mqlake.records.versions import HEADER_MQTT
from mqlake.tables.catalogue import MESSAGES
from streaming.log.sources import header, header_byte


def messages(inbound: DataFrame) -> DataFrame:
    """Return one row for each message; barriers and records of others are left out.

    No record in the log may fail the query, again at each start: a value that
    its column cannot hold is null, text that is not UTF-8 is made valid.
    """
    parsed = inbound.select(
        "*",
        F.col("key").cast("string").alias("name"),
        header(HEADER_MQTT).alias("mqtt"),
    )
    ours = parsed.where(F.expr(IS_MESSAGE))
    flags = header_byte(HEADER_MQTT, 3)
    columns: dict[str, Column] = {
        "id": F.lower(F.hex(header(HEADER_ID))),
        "tenant": F.substring_index("name", "/", 1),
        "topic": F.expr("substring(name, instr(name, '/') + 1)"),
        "payload": F.coalesce("value", F.lit(b"")),
        "qos": flags.bitwiseAND(FLAG_QOS),
        "retain": flags.bitwiseAND(FLAG_RETAIN) != 0,
        "dup": flags.bitwiseAND(FLAG_DUP) != 0,
        "client_id": _text(HEADER_CLIENT_ID),
        "username": _text(HEADER_USERNAME),
        "protocol_level": header_byte(HEADER_MQTT, 2),
        "properties": _text(HEADER_PROPERTIES),
        "origin": _text(HEADER_ORIGIN),
        "ts": F.col("timestamp"),
        "log_partition": F.col("partition"),
        "log_offset": F.col("offset"),
    }
    return ours.select(
        *(
            columns[column.name].try_cast(column.type).alias(column.name)
            for column in MESSAGES.columns
        )
    )


def _text(name: str) -> Column:
    return F.make_valid_utf8(header(name).cast("string"))
