import asyncio
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from mqlake.logs import (
    KEPT_LOG_FILES,
    LEVELS,
    MAX_LOG_BYTES,
    OUR_NAMES,
    log_often,
    logged_lines,
    set_up_logging,
)


@pytest.fixture(autouse=True)
def _put_the_root_logger_back() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers.clear()
    yield
    for handler in root.handlers:
        handler.close()
    root.handlers[:] = handlers
    root.setLevel(level)


def test_a_line_has_time_level_name_message_and_values(tmp_path: Path) -> None:
    log_file = tmp_path / "gateway-1.log"
    set_up_logging("INFO", log_file)
    logging.getLogger("ingest.gateway").info(
        "client connected", extra={"fields": {"client_id": "a b", "port": 1883}}
    )
    line = log_file.read_text(encoding="utf-8")
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3} INFO ingest\.gateway client connected "
        r"client_id='a b' port=1883\n",
        line,
    )


def test_lines_below_the_level_are_left_out(tmp_path: Path) -> None:
    log_file = tmp_path / "x.log"
    set_up_logging("WARNING", log_file)
    logging.getLogger("x").info("not this")
    logging.getLogger("x").warning("but this")
    assert "not this" not in log_file.read_text(encoding="utf-8")
    assert "but this" in log_file.read_text(encoding="utf-8")


def test_without_a_file_lines_go_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging("INFO", None)
    logging.getLogger("x").info("hello")
    captured = capsys.readouterr()
    assert captured.err.endswith("INFO x hello\n")
    assert captured.out == ""


def test_setting_up_again_replaces_what_was(tmp_path: Path) -> None:
    set_up_logging("INFO", tmp_path / "first.log")
    first = logging.getLogger().handlers[0]
    set_up_logging("INFO", tmp_path / "second.log")
    first.close()
    logging.getLogger("x").info("hello")
    assert (tmp_path / "first.log").read_text(encoding="utf-8") == ""
    assert "hello" in (tmp_path / "second.log").read_text(encoding="utf-8")


def test_a_log_is_rotated_and_old_ones_go(tmp_path: Path) -> None:
    log_file = tmp_path / "x.log"
    set_up_logging("INFO", log_file)
    line = "x" * (MAX_LOG_BYTES // 2)
    for _ in range(2 * (KEPT_LOG_FILES + 3)):
        logging.getLogger("x").info(line)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"x.log"} | {f"x.log.{number + 1}" for number in range(KEPT_LOG_FILES)}


def test_lines_can_be_objects(tmp_path: Path) -> None:
    log_file = tmp_path / "x.log"
    set_up_logging("INFO", log_file, "json", "gateway-1")
    logger = logging.getLogger("ingest.gateway")
    fields = {"client_id": "a\nb", "bytes": b"\xff", "message": "theirs"}
    logger.info("client %s", "connected", extra={"fields": fields})
    try:
        raise ValueError("no")
    except ValueError:
        logger.exception("failed")
    first, second = map(json.loads, log_file.read_text(encoding="utf-8").splitlines())
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first.pop("time"))
    assert first == {
        "level": "INFO",
        "logger": "ingest.gateway",
        "message": "client connected",
        "process": "gateway-1",
        "client_id": "a\nb",
        "bytes": "b'\\xff'",
        "_message": "theirs",
    }
    assert second["exception"].splitlines()[-1] == "ValueError: no"
    assert set(second) == set(OUR_NAMES)


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_what_is_logged_often_looks_like_any_line(
    tmp_path: Path, log_format: Literal["text", "json"]
) -> None:
    log_file = tmp_path / "x.log"
    set_up_logging("INFO", log_file, log_format, "gateway-1")
    logger = logging.getLogger("ingest.gateway")
    before = logged_lines()["INFO"]
    logger.info("100 % connected", extra={"fields": {"client_id": "a"}})
    log_often(logger, "100 % connected", {"client_id": "a"})
    assert logged_lines()["INFO"] == before + 2
    one, other = (
        re.sub(r"\d\d:\d\d\.\d{3}", "", line)
        for line in log_file.read_text(encoding="utf-8").splitlines()
    )
    assert one == other


def test_lines_are_counted_by_level(tmp_path: Path) -> None:
    before = logged_lines()
    set_up_logging("INFO", tmp_path / "x.log")
    logging.getLogger("x").debug("not written")
    logging.getLogger("x").error("written")
    after = logged_lines()
    assert {level: after[level] - before[level] for level in LEVELS} == {
        **dict.fromkeys(LEVELS, 0),
        "ERROR": 1,
    }


def test_lines_of_one_turn_of_an_event_loop_are_written_together(tmp_path: Path) -> None:
    log_file = tmp_path / "x.log"
    set_up_logging("INFO", log_file)

    async def write() -> None:
        logging.getLogger("x").info("one")
        logging.getLogger("x").info("two")
        assert log_file.read_text(encoding="utf-8") == ""
        await asyncio.sleep(0)
        assert len(log_file.read_text(encoding="utf-8").splitlines()) == 2

    asyncio.run(write())


def test_a_warning_and_what_was_before_it_is_written_at_once(tmp_path: Path) -> None:
    log_file = tmp_path / "x.log"
    set_up_logging("INFO", log_file)

    async def write() -> None:
        logging.getLogger("x").info("one")
        logging.getLogger("x").warning("two")
        assert len(log_file.read_text(encoding="utf-8").splitlines()) == 2

    asyncio.run(write())


def test_lines_are_written_after_an_event_loop_has_ended_in_the_middle_of_a_turn(
    tmp_path: Path,
) -> None:
    log_file = tmp_path / "x.log"
    set_up_logging("INFO", log_file)

    def stop_at_once() -> None:
        logging.getLogger("x").info("last words")
        raise KeyboardInterrupt

    loop = asyncio.new_event_loop()
    loop.call_soon(stop_at_once)
    with pytest.raises(KeyboardInterrupt):
        loop.run_forever()
    loop.close()
    logging.getLogger("x").info("after it")
    lines = log_file.read_text(encoding="utf-8").splitlines()
    assert [line.split(" x ")[1] for line in lines] == ["last words", "after it"]
