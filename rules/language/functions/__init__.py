"""The functions of the language: under EMQX's names, made of Spark's.

A function never fails: a value that cannot be computed is NULL, except that a text too long for
the function fails the rule for that message. A function becomes a Spark function of the same
meaning or a short combination; none has side effects, reads files, tells of the machine or runs
other code.
"""

from typing import Final

from rules.language.functions import (
    arithmetic,
    binaries,
    containers,
    conversions,
    decoding,
    messages,
    texts,
    times,
)
from rules.language.functions.function import Function

FUNCTIONS: Final[dict[str, Function]] = {
    **messages.FUNCTIONS,
    **arithmetic.FUNCTIONS,
    **texts.FUNCTIONS,
    **conversions.FUNCTIONS,
    **containers.FUNCTIONS,
    **binaries.FUNCTIONS,
    **times.FUNCTIONS,
    **decoding.FUNCTIONS,
}
