"""Records whose value is a pydantic model, and the version."""

import json
from typing import TypeVar

from pydantic import BaseModel

from mqlake.errors import InvalidRecord
from mqlake.records.versions import check_version

Model = TypeVar("Model", bound=BaseModel)


def decode_model(model: type[Model], value: bytes, what: str, verb: str = "is") -> Model:
    """Read the value of a record; members that this release does not know are passed over.

    Args:
        model: Model of the value.
        value: JSON with the version in `v`.
        what: The record, for people.
        verb: That `what` takes.

    Raises:
        InvalidRecord: Not JSON, another version, or not as the model has it.
    """
    try:
        found = json.loads(value)
        if not isinstance(found, dict):
            raise InvalidRecord(f"{what} {verb} no JSON object")
        check_version(found.get("v"), what)
        known = {name: found[name] for name in model.model_fields if name in found}
        return model.model_validate(known)
    except (ValueError, RecursionError) as exc:
        raise InvalidRecord(f"{what} {verb} malformed: {exc!r}"[:500]) from exc
