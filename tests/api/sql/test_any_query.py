"""Whatever is asked, a query is checked or refused with a reason."""

import random

from api.sql.checking import check
from api.sql.errors import QueryError
from tests.api.sql.direct.test_questions import FOR_SPARK, SMALL
from tests.cases import case
from tests.ingest.simulations import simulations_wanted
from tests.streaming.test_two_parsers import examples, mixed


def test_the_check_raises_nothing_but_its_error() -> None:
    seed = random.randrange(1 << 32)
    chance, known = random.Random(seed), [*examples(), *SMALL, *FOR_SPARK]
    for number in range(simulations_wanted(1_000)):
        text = mixed(chance, known)
        with case(f"seed {seed}, query {number}: {text!r}"):
            try:
                check(text, "acme", topic_filters=chance.choice((None, ["a/#"])))
            except QueryError:
                continue
