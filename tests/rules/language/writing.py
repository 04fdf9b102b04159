"""Writing a parsed rule again, fully in parentheses."""

from sqlglot import exp

from rules.language.syntax import nodes
from rules.language.values import shown_segment

_OPERATORS: dict[type[exp.Expr], str] = {
    exp.And: "AND",
    exp.Or: "OR",
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.GT: ">",
    exp.GTE: ">=",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.Add: "+",
    exp.Sub: "-",
    exp.Mul: "*",
    exp.Div: "/",
    exp.IntDiv: "div",
    exp.Mod: "mod",
    exp.DPipe: "||",
    exp.RegexpLike: "RLIKE",
    nodes.TopicMatch: "=~",
}


def text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def name(value: str) -> str:
    return '"' + value.replace('"', '""') + '"'


def statement(node: exp.Expr) -> str:
    args = node.args
    items = ", ".join(map(item, args["items"]))
    written = f"{'FOREACH' if args['is_foreach'] else 'SELECT'} {items}"
    if args.get("do"):
        written += f" DO {', '.join(map(item, args['do']))}"
    if args.get("incase"):
        written += f" INCASE {expression(args['incase'])}"
    written += f" FROM {', '.join(name(one.this) for one in args['filters'])}"
    if args.get("where"):
        written += f" WHERE {conjunction(args['where'])}"
    return written


def conjunction(node: exp.Expr) -> str:
    """Write the conditions of WHERE, which stay apart."""
    if isinstance(node, exp.And):
        return f"{conjunction(node.this)} AND {expression(node.expression)}"
    return expression(node)


def item(node: exp.Expr) -> str:
    if isinstance(node.this, exp.Star):
        return "*"
    path = node.args.get("path")
    return expression(node.this) + (f" AS {'.'.join(map(name, path))}" if path else "")


def expression(node: exp.Expr) -> str:
    if isinstance(node, exp.Paren):
        return expression(node.this)
    if type(node) in _OPERATORS:
        return f"({expression(node.this)} {_OPERATORS[type(node)]} {expression(node.expression)})"
    if isinstance(node, exp.Literal):
        return text(node.this) if node.is_string else node.this
    if isinstance(node, exp.Null):
        return "NULL"
    if isinstance(node, exp.Boolean):
        return "TRUE" if node.this else "FALSE"
    if isinstance(node, nodes.Path):
        segments = node.args.get("segments") or ()
        inner = (
            f".{name(one)}" if isinstance(one, str) else shown_segment(one) for one in segments
        )
        return name(node.this) + "".join(inner)
    if isinstance(node, nodes.Inside):
        inner = (
            f".{name(one)}" if isinstance(one, str) else shown_segment(one)
            for one in node.args["segments"]
        )
        return expression(node.this) + "".join(inner)
    if isinstance(node, nodes.Call):
        if node.this == "cast":
            value, kind = node.expressions
            return f"cast({expression(value)} AS {kind.this})"
        return f"{node.this}({', '.join(map(expression, node.expressions))})"
    if isinstance(node, nodes.ListOf):
        return f"[{', '.join(map(expression, node.expressions))}]"
    if isinstance(node, exp.Not):
        return f"(NOT {expression(node.this)})"
    if isinstance(node, exp.Neg):
        return f"(- {expression(node.this)})"
    if isinstance(node, exp.Is):
        return f"({expression(node.this)} IS {expression(node.expression)})"
    if isinstance(node, exp.In):
        return f"({expression(node.this)} IN ({', '.join(map(expression, node.expressions))}))"
    if isinstance(node, exp.Between):
        low, high = expression(node.args["low"]), expression(node.args["high"])
        return f"({expression(node.this)} BETWEEN {low} AND {high})"
    if isinstance(node, exp.Like):
        negated = "NOT " if node.args.get("negate") else ""
        return f"({expression(node.this)} {negated}LIKE {expression(node.expression)})"
    if isinstance(node, exp.Escape):
        return f"{expression(node.this)[:-1]} ESCAPE {expression(node.expression)})"
    if isinstance(node, exp.Case):
        subject = f" {expression(node.this)}" if node.this else ""
        branches = "".join(
            f" WHEN {expression(one.this)} THEN {expression(one.args['true'])}"
            for one in node.args["ifs"]
        )
        default = node.args.get("default")
        last = f" ELSE {expression(default)}" if default else ""
        return f"CASE{subject}{branches}{last} END"
    raise AssertionError(f"not a node of the language: {type(node)}")
