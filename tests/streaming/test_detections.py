"""Detections: a real streaming query and the query over a table tell what the model tells."""

import json
import os
import random
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from rules.language.plan import Detection
from streaming.rules.detections import detected
from tests.streaming.detection_model import Message, Told, expected

pytestmark = [
    pytest.mark.campaign("tests/integration/test_rules_stateful.py runs rules with memory"),
    pytest.mark.spark,
]

START_MS: Final = 1_700_000_000_000
LATENESS_MS: Final = 5_000
KEEP_MS: Final = 60_000
DURATION_MS: Final = 10_000
SCHEMA: Final = "k STRING, n BIGINT, t BIGINT, c BOOLEAN, x DOUBLE"
SEED: Final = 20
NO_KEY: Final = "None"
"""Stands for messages whose key is NULL."""

ABSENCE: Final = Detection("absence", "s0", ("k",), order=("n",), duration_ms=DURATION_MS)
DEBOUNCE: Final = Detection(
    "debounce", "s0", ("k",), condition="c", order=("n",), duration_ms=DURATION_MS
)
HYSTERESIS: Final = Detection("hysteresis", "s0", ("k",), value="x", order=("n",), high=7, low=3)
N_OF_M: Final = Detection("n_of_m", "s0", ("k",), condition="c", order=("n",), least=3, last=5)
ALL: Final = {one.kind: one for one in (ABSENCE, DEBOUNCE, HYSTERESIS, N_OF_M)}

Sequences = dict[str, list[Message]]


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> SparkSession:
    session = spark.newSession()
    session.conf.set("spark.sql.shuffle.partitions", "1")
    session.conf.set(
        "spark.sql.streaming.stateStore.providerClass",
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    )
    return session


@pytest.fixture(scope="module")
def sequences() -> Sequences:
    """Messages of many keys, with equal times and with pauses just as long as the durations."""
    random_ = random.Random(SEED)
    number = 0
    found: Sequences = {}
    for key in range(60):
        time = START_MS + random_.randrange(20_000)
        messages = []
        likely = random_.choice((0.2, 0.5, 0.9))
        for _ in range(random_.randrange(1, 40)):
            number += 1
            holds = random_.choices((True, False, None), (likely, 1 - likely, 0.05))[0]
            value = random_.choice((None, 1.0, 3.0, 4.5, 7.0, 9.0))
            messages.append(Message(time, number, holds, value))
            time += random_.choice((0, 1, 900, 2_500, 2_500, 5_000, 9_999, 10_000, 10_001))
            if random_.random() < 0.05:
                time += random_.choice(
                    (30_000, KEEP_MS, KEEP_MS + 1, KEEP_MS + DURATION_MS, 90_000)
                )
        found[f"key {key}" if key else NO_KEY] = messages
    return found


def batches(sequences: Sequences, count: int) -> list[list[tuple[str, Message]]]:
    """Return messages as they come: each up to the lateness after its time, in `count` lots."""
    random_ = random.Random(SEED + 1)
    arrivals = sorted(
        (message.time + random_.randrange(LATENESS_MS), key, message)
        for key, messages in sequences.items()
        for message in messages
    )
    cuts = sorted(random_.sample(range(1, len(arrivals)), count - 1))
    coming = [(key, message) for _, key, message in arrivals]
    return [coming[begin:end] for begin, end in zip([0, *cuts], [*cuts, None], strict=True)]


class Stream:
    """Messages as files, and a query that takes one of them in each batch.

    A message without a number only moves the time, as the ticks of the application do.
    """

    def __init__(self, session: SparkSession, folder: Path, detection: Detection) -> None:
        self._session = session
        self._folder = folder
        self._detection = detection
        self._files = 0
        (folder / "in").mkdir(parents=True)

    def write(self, messages: Sequence[tuple[str, Message]]) -> None:
        self._files += 1
        lines = [
            json.dumps({"k": k, "n": one.number, "t": one.time, "c": one.holds, "x": one.value})
            for k, one in ((None if key == NO_KEY else key, one) for key, one in messages)
        ]
        hidden = self._folder / "in" / f".{self._files:04}"
        hidden.write_text("\n".join(lines))
        os.utime(hidden, (self._files, self._files))  # the source takes them by their times
        hidden.rename(self._folder / "in" / f"{self._files:04}.json")

    def pass_to(self, time: int) -> None:
        """Let the watermark come to a time; it moves between two batches."""
        for _ in range(2):
            self.write([(NO_KEY, Message(time + LATENESS_MS, 0, None, None))])

    def run(self) -> list[dict[str, object]]:
        """Process what was written and return all rows so far."""
        source = (
            self._session.readStream.schema(SCHEMA)
            .option("maxFilesPerTrigger", 1)
            .json(str(self._folder / "in"))
        )
        messages = with_time(source).withWatermark("event_time", f"{LATENESS_MS} milliseconds")
        # A condition that does not name the time would be evaluated before the watermark sees it.
        messages = messages.where("n > 0 OR event_time < timestamp'1970-01-01'")
        told = detected(self._session, messages, self._detection, keep_ms=KEEP_MS)
        query = (
            told.writeStream.format("parquet")
            .option("path", str(self._folder / "out"))
            .option("checkpointLocation", str(self._folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        progress = query.lastProgress
        assert progress is not None
        self.state_rows = progress.stateOperators[0].numRowsTotal
        told = self._session.read.parquet(str(self._folder / "out"))
        return [row.asDict() for row in told.collect()]


def with_time(messages: DataFrame) -> DataFrame:
    return messages.withColumn("event_time", F.expr("timestamp_millis(t)"))


def by_key(rows: Sequence[dict[str, object]]) -> dict[str, list[Told]]:
    found: dict[str, list[Told]] = {}
    for row in rows:
        told = Told(int(str(row["n"])), ms(row["at"]), str(row["state"]), ms(row["since"]))
        found.setdefault(str(row["k"]), []).append(told)
    return {key: sorted(told, key=lambda one: (one.at, one.number)) for key, told in found.items()}


def ms(time: object) -> int:
    assert isinstance(time, datetime)
    return round(time.astimezone(UTC).timestamp() * 1000)


def model(detection: Detection, sequences: Sequences, until: int) -> dict[str, list[Told]]:
    found = {
        key: sorted(
            expected(detection, messages, until, KEEP_MS), key=lambda one: (one.at, one.number)
        )
        for key, messages in sequences.items()
    }
    return {key: told for key, told in found.items() if told}


def last_time(sequences: Sequences) -> int:
    return max(message.time for messages in sequences.values() for message in messages)


@pytest.mark.parametrize("kind", ALL)
def test_a_stream_tells_what_the_model_tells(
    session: SparkSession, sequences: Sequences, tmp_path: Path, kind: str
) -> None:
    stream = Stream(session, tmp_path, ALL[kind])  # type: ignore[index]
    lots = batches(sequences, 4)
    until = last_time(sequences) + 20_000
    for number, lot in enumerate(lots):
        stream.write(lot)
        if number == 1:
            stream.run()  # what follows goes on from its checkpoint
    stream.pass_to(until)

    found = by_key(stream.run())

    assert found == model(ALL[kind], sequences, until)  # type: ignore[index]
    assert sum(map(len, found.values())) > 50


@pytest.mark.parametrize("kind", ALL)
def test_a_table_tells_what_the_model_tells(
    session: SparkSession, sequences: Sequences, kind: str
) -> None:
    detection = ALL[kind]  # type: ignore[index]
    rows = [
        (None if key == NO_KEY else key, one.number, one.time, one.holds, one.value)
        for key, one in flat(sequences)
    ]
    table = with_time(session.createDataFrame(rows, SCHEMA))
    until = last_time(sequences) + 20_000

    told = detected(
        session, table, detection, until=f"timestamp_millis({until})", keep_ms=KEEP_MS
    ).collect()

    assert by_key([row.asDict() for row in told]) == model(detection, sequences, until)


def flat(sequences: Sequences) -> Iterator[tuple[str, Message]]:
    for key, messages in sequences.items():
        for message in messages:
            yield key, message


def test_keys_that_are_gone_or_well_have_no_memory(session: SparkSession, tmp_path: Path) -> None:
    stream = Stream(session, tmp_path, ABSENCE)
    stream.write([(f"key {n}", Message(START_MS, n, None, None)) for n in range(1, 500)])
    stream.pass_to(START_MS + DURATION_MS)
    assert len(stream.run()) == 499
    assert stream.state_rows == 499

    stream.pass_to(START_MS + DURATION_MS + KEEP_MS)

    assert len(stream.run()) == 499, "a silence is told once"
    assert stream.state_rows == 0


def test_a_value_below_the_threshold_leaves_nothing(session: SparkSession, tmp_path: Path) -> None:
    stream = Stream(session, tmp_path, HYSTERESIS)
    stream.write([(f"key {n}", Message(START_MS, n, None, 1.0)) for n in range(1, 500)])
    stream.pass_to(START_MS)

    assert stream.run() == []
    assert stream.state_rows == 0
