"""The names of the queries: of their folders, and in all that is shown of them."""

from typing import Final

ROUTER: Final = "router"
RULES: Final = "rules"
HISTORY: Final = "history"
STATE: Final = "state"
OUTPUTS: Final = "outputs"

OF_THE_ROUTER: Final = (ROUTER, RULES)
"""The others, and those of stateful rules, which are named after their runs, are of the lake."""
