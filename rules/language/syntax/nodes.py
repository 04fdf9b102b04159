"""The nodes of a rule's tree that sqlglot does not have.

Which nodes an expression may consist of, `expressions` of the language says.
"""

from sqlglot import exp


class Path(exp.Expression):
    """A name with a path into it: `payload.items[1].c`."""

    arg_types = {"this": True, "segments": False}  # noqa: RUF012 - sqlglot's declaration


class Call(exp.Expression):
    """A function's call: its name in lower case and its arguments.

    `distinct` and `where` are those of an aggregate: `count(DISTINCT x) FILTER (WHERE …)`.
    """

    arg_types = {  # noqa: RUF012
        "this": True,
        "expressions": False,
        "distinct": False,
        "where": False,
    }


class Named(exp.Expression):
    """An argument with its name: `lateness => '30 seconds'`."""

    arg_types = {"this": True, "expression": True}  # noqa: RUF012


class Interval(exp.Expression):
    """`INTERVAL '30 seconds'`; its text."""

    arg_types = {"this": True}  # noqa: RUF012


class Inside(exp.Expression):
    """A path into a call's value: `json_decode(x).a`."""

    arg_types = {"this": True, "segments": True}  # noqa: RUF012


class TopicMatch(exp.Expression, exp.Binary, exp.Predicate):
    """`topic =~ 'a/+/#'`."""


class ListOf(exp.Expression):
    """An array written out: `[1, 2]`."""

    arg_types = {"expressions": False}  # noqa: RUF012


class Item(exp.Expression):
    """One of the expressions that SELECT, FOREACH or DO list; `path` is the name after AS."""

    arg_types = {"this": True, "path": False}  # noqa: RUF012


class Filter(exp.Expression):
    """One source named after FROM."""

    arg_types = {"this": True}  # noqa: RUF012


class Decoding(exp.Expression):
    """`DECODE 'schema'[, 'message type']` behind FROM: the payload's schema."""

    arg_types = {"this": True, "message_type": False}  # noqa: RUF012


class JoinedTable(exp.Expression):
    """A reference table named after JOIN."""

    arg_types = {"this": True}  # noqa: RUF012


class Join(exp.Expression):
    """One JOIN: with `filters`, or with a `table`. `within` and `lateness` are literals."""

    arg_types = {  # noqa: RUF012
        "is_left": True,
        "filters": False,
        "decoding": False,
        "table": False,
        "alias": False,
        "on": True,
        "within": False,
        "lateness": False,
    }


class Statement(exp.Expression):
    """A whole rule."""

    arg_types = {  # noqa: RUF012
        "items": True,
        "is_foreach": True,
        "do": False,
        "incase": False,
        "filters": True,
        "decoding": False,
        "alias": False,
        "joins": False,
        "where": False,
        "group": False,
        "having": False,
    }
