"""Small questions for Spark, as all others are: for tests of what Spark answers."""

from collections.abc import Callable
from pathlib import Path

from api.sql.direct.questions import SmallQuestion
from api.sql.direct.reader import TableFiles


class NoFiles(TableFiles):
    """Answers nothing."""

    def __init__(self) -> None:
        super().__init__(Path("nowhere"))

    def answer(
        self, question: SmallQuestion, most: int, target: Path, is_unwanted: Callable[[], bool]
    ) -> None:
        return None
