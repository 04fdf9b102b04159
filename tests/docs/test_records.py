"""The log topics that the page about records tells of are those of the code."""

from pathlib import Path

from mqlake.log.log_topics import ACKNOWLEDGED_LOG_TOPICS, KEPT_A_WEEK, LOG_TOPICS

PAGE = Path(__file__).parents[2] / "docs" / "records.md"


def test_each_log_topic_has_its_row() -> None:
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in PAGE.read_text().splitlines()
        if line.startswith("| `mqlake.")
    ]
    told = {row[0].strip("`"): row[1:3] for row in rows}
    for one in LOG_TOPICS:
        partitions, kept = told[one.name]
        assert (partitions == "1") == (one.partitions == "one"), one.name
        is_compacted = one.keeping["cleanup.policy"] == "compact"
        assert kept.startswith("compacted") == is_compacted, one.name
        assert kept.startswith("7 days or 1 GiB") == (one.keeping is KEPT_A_WEEK), one.name


def test_what_is_written_again_is_all_that_nobody_acknowledged() -> None:
    others = {one.name for one in LOG_TOPICS} - {*ACKNOWLEDGED_LOG_TOPICS}
    assert others == {"mqlake.events", "mqlake.metrics"}
