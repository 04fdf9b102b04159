import pytest

from mqlake.errors import OperationalError
from mqlake.log.shorter import check_not_shorter

pytestmark = pytest.mark.promise


def test_a_log_that_has_all_that_was_read_is_taken() -> None:
    check_not_shorter("history", "mqlake.inbound", {0: 5, 1: 0}, {0: 5, 1: 0, 2: 7})


@pytest.mark.parametrize("ends", [{0: 5, 1: 8}, {0: 5}])
def test_a_log_that_has_less_is_refused(ends: dict[int, int]) -> None:
    with pytest.raises(
        OperationalError,
        match=rf"partition 1 ends at offset {ends.get(1, 0)}, and history has read it up to 9",
    ):
        check_not_shorter("history", "mqlake.inbound", {0: 5, 1: 9}, ends)
