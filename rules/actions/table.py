"""`table`: append the row to a Delta table of the rule's own.

The streaming application carries it out; here are the arguments only.
"""

from typing import Annotated

from pydantic import Field

from rules.actions.contract import Arguments

TableName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,62}$")]


class Args(Arguments):
    """Arguments of `table`."""

    name: TableName = Field(description="the table is called rule_<name>")
