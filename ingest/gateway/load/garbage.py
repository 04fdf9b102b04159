"""How often Python looks for unreachable cycles of objects.

A client that goes leaves no such cycle: its objects go with the last reference. The remaining ones
are accidents, such as tracebacks, which may wait. So the collector does not run each time that 700
objects more are there, which is after each fiftieth client, and passes over all that a gateway has
once it is made.
"""

import gc
from typing import Final

YOUNG_OBJECTS: Final = 10_000
"""New objects after which they are looked at: half a millisecond."""
PASSES_OF_YOUNG: Final = 5
"""Passes after which objects that were found in use are looked at once more."""
PASSES_OF_MIDDLE: Final = 10
"""Such passes after which all objects are, if there is a quarter more than the last time."""


def collect_rarely() -> None:
    """Pass over present objects, and look at later ones seldom; for the whole process."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, PASSES_OF_YOUNG, PASSES_OF_MIDDLE)
