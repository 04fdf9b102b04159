"""How much memory stays taken when what was done is over: of what must not grow for ever."""

import gc
import tracemalloc
from collections.abc import Callable


def kept_bytes(work: Callable[[], object]) -> int:
    """Return how many bytes objects take that were made meanwhile and are still there."""
    tracemalloc.start()
    try:
        work()
        gc.collect()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
