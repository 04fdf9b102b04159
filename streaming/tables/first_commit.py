"""The first commit of a Delta table, as CREATE TABLE writes it, written without Delta.

Delta takes a second of a processor for each table while Java has compiled nothing yet, and a new
system has ten. A test holds this commit to that of Delta.
"""

import json
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from mqlake.durable import write_durably
from mqlake.tables.catalogue import Column, Table

_VERSION: Final = "0" * 20
_TYPES: Final[dict[str, Any]] = {
    **{name: name for name in ("binary", "boolean", "string", "timestamp")},
    "tinyint": "byte",
    "smallint": "short",
    "int": "integer",
    "bigint": "long",
    "array<bigint>": {"type": "array", "elementType": "long", "containsNull": True},
}
"""Spark SQL type to its name in a schema; no others are in `mqlake.tables.catalogue`."""
_PROTOCOL: Final = {"minReaderVersion": 1, "minWriterVersion": 2}
_CLUSTERED_PROTOCOL: Final = {
    "minReaderVersion": 1,
    "minWriterVersion": 7,
    "writerFeatures": ["domainMetadata", "clustering", "invariants", "appendOnly"],
}
_CLUSTERING: Final = "delta.clustering"


def write_first_commit(folder: Path, table: Table, properties: Mapping[str, str]) -> None:
    """Make a table that has no rows; no other process may make it at the same time.

    Args:
        folder: Folder of the table.
        table: Its columns and how it is clustered.
        properties: Properties of the table.

    Raises:
        OSError: It cannot be written.
    """
    log = folder / "_delta_log"
    for one in (folder.parent, folder, log):
        one.mkdir(mode=0o700, parents=True, exist_ok=True)
    metadata = _metadata(table, properties)
    protocol = _CLUSTERED_PROTOCOL if table.cluster_by else _PROTOCOL
    domains = [_clustering(table)] if table.cluster_by else []
    transaction = str(uuid.uuid4())
    actions = [
        {"commitInfo": _commit_info(table, properties, metadata["createdTime"], transaction)},
        {"metaData": metadata},
        {"protocol": protocol},
        *({"domainMetadata": one} for one in domains),
    ]
    # State of the table at this version: Delta reads it in place of a job over all commits.
    checksum = {
        "txnId": transaction,
        "tableSizeBytes": 0,
        "numFiles": 0,
        "numMetadata": 1,
        "numProtocol": 1,
        "setTransactions": [],
        "domainMetadata": domains,
        "allFiles": [],
        "metadata": metadata,
        "protocol": protocol,
    }
    write_durably(log / f"{_VERSION}.crc", json.dumps(checksum).encode(), mode=0o600)
    # Last: with it the table is there.
    lines = "".join(json.dumps(action) + "\n" for action in actions)
    write_durably(log / f"{_VERSION}.json", lines.encode(), mode=0o600)


def _metadata(table: Table, properties: Mapping[str, str]) -> dict[str, Any]:
    schema = {"type": "struct", "fields": [_field(column) for column in table.columns]}
    return {
        "id": str(uuid.uuid4()),
        "description": table.comment,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps(schema),
        "partitionColumns": [],
        "configuration": dict(properties),
        "createdTime": time.time_ns() // 1_000_000,
    }


def _field(column: Column) -> dict[str, Any]:
    return {
        "name": column.name,
        "type": _TYPES[column.type],
        "nullable": True,
        "metadata": {"comment": column.comment},
    }


def _clustering(table: Table) -> dict[str, Any]:
    columns = [[column] for column in table.cluster_by]
    configuration = {"clusteringColumns": columns, "domainName": _CLUSTERING}
    return {"domain": _CLUSTERING, "configuration": json.dumps(configuration), "removed": False}


def _commit_info(
    table: Table, properties: Mapping[str, str], now_ms: int, transaction: str
) -> dict[str, Any]:
    return {
        "timestamp": now_ms,
        "operation": "CREATE TABLE",
        "operationParameters": {
            "partitionBy": "[]",
            "clusterBy": json.dumps(table.cluster_by),
            "description": table.comment,
            "isManaged": "false",
            "properties": json.dumps(dict(properties)),
        },
        "isolationLevel": "Serializable",
        "isBlindAppend": True,
        "operationMetrics": {},
        "engineInfo": "mqlake",
        "txnId": transaction,
    }
