"""The rule language as a dialect of sqlglot: its words, and the trees its statements become.

The operators and their precedence are sqlglot's; operands, clauses and names are parsed here, so
that a tree holds no subqueries, no tables, no types and no functions that sqlglot knows and the
language does not. Which nodes an expression may consist of, `expressions` says.
"""

import re
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any, Final, NoReturn, TypeVar

from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.parsers.spark import SparkParser
from sqlglot.tokenizer_core import Token, TokenType
from sqlglot.tokens import Tokenizer as BaseTokenizer

from rules.errors import RuleError
from rules.language.values import Segment

Node = TypeVar("Node", bound=exp.Expr)


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


_KEYWORDS: Final = {
    "SELECT": TokenType.SELECT,
    "FOREACH": TokenType.FOR,
    "DO": TokenType.EXECUTE,
    "INCASE": TokenType.QUALIFY,
    "FROM": TokenType.FROM,
    "WHERE": TokenType.WHERE,
    "AS": TokenType.ALIAS,
    "AND": TokenType.AND,
    "OR": TokenType.OR,
    "NOT": TokenType.NOT,
    "IN": TokenType.IN,
    "IS": TokenType.IS,
    "LIKE": TokenType.LIKE,
    "RLIKE": TokenType.RLIKE,
    "REGEXP": TokenType.RLIKE,
    "BETWEEN": TokenType.BETWEEN,
    "CASE": TokenType.CASE,
    "WHEN": TokenType.WHEN,
    "THEN": TokenType.THEN,
    "ELSE": TokenType.ELSE,
    "END": TokenType.END,
    "NULL": TokenType.NULL,
    "TRUE": TokenType.TRUE,
    "FALSE": TokenType.FALSE,
    "DIV": TokenType.DIV,
    "MOD": TokenType.MOD,
}

_REFUSED: Final = {
    "RIGHT": "only JOIN and LEFT JOIN are supported",
    "FULL": "only JOIN and LEFT JOIN are supported",
    "CROSS": "only JOIN and LEFT JOIN are supported, with ON",
    "NATURAL": "only JOIN and LEFT JOIN are supported, with ON",
    "USING": "a join takes ON and a condition",
    "WINDOW": "windows are tumble, hop and session in GROUP BY",
    "OVER": "OVER is not supported; windows are tumble, hop and session in GROUP BY",
    "ORDER": "ORDER BY has no meaning for a stream of messages",
    "LIMIT": "LIMIT has no meaning for a stream of messages",
    "UNION": "a rule is one SELECT or FOREACH; UNION is not supported",
    "EXCEPT": "a rule is one SELECT or FOREACH; EXCEPT is not supported",
    "INTERSECT": "a rule is one SELECT or FOREACH; INTERSECT is not supported",
    "LATERAL": "LATERAL is not supported; FOREACH goes through an array",
}
"""Words of SQL that end an expression and are not supported, with their errors."""

_CLAUSES: Final = frozenset(
    ("JOIN", "INNER", "LEFT", "ON", "WITHIN", "LATENESS", "WHERE", "GROUP", "HAVING")
)
"""Words that begin a clause. They are no keywords: a field or a function may be named so."""


_SHAPE: Final = 'SELECT … FROM "topic/filter" WHERE …; docs/rules.md has examples'
"""Said of errors of syntax about which nothing better is known."""


_OPERANDS: Final = frozenset(
    (
        TokenType.VAR,
        TokenType.IDENTIFIER,
        TokenType.STRING,
        TokenType.NUMBER,
        TokenType.L_PAREN,
        TokenType.L_BRACKET,
        TokenType.CASE,
    )
)
_CONSTANTS: Final[dict[TokenType, Callable[[str], exp.Expr]]] = {
    TokenType.NUMBER: exp.Literal.number,
    TokenType.STRING: exp.Literal.string,
    TokenType.NULL: lambda _text: exp.Null(),
    TokenType.TRUE: lambda _text: exp.Boolean(this=True),
    TokenType.FALSE: lambda _text: exp.Boolean(this=False),
}
_SPANS: Final = frozenset((TokenType.STRING, TokenType.NUMBER))
_RANGE: Final = re.compile(r"\[\s*(-?[0-9]{1,9})\s*\.\.\s*(-?[0-9]{1,9})\s*\]")


def _binary(kind: type[exp.Binary]) -> Callable[["RuleParser", exp.Expr], exp.Expr]:
    def parse(parser: "RuleParser", left: exp.Expr) -> exp.Expr:
        return parser.node(kind(this=left, expression=parser.operand_of_comparison()), left)

    return parse


class RuleParser(SparkParser):
    """sqlglot's parser with the operands and clauses of the rule language."""

    FUNCTIONS = {}  # noqa: RUF012 - sqlglot's declarations, here and below
    FUNCTION_PARSERS = {}  # noqa: RUF012
    NO_PAREN_FUNCTIONS = {}  # noqa: RUF012
    NO_PAREN_FUNCTION_PARSERS = {}  # noqa: RUF012
    DISJUNCTION = {TokenType.OR: exp.Or}  # noqa: RUF012
    CONJUNCTION = {TokenType.AND: exp.And}  # noqa: RUF012
    EQUALITY = {TokenType.EQ: exp.EQ, TokenType.NEQ: exp.NEQ}  # noqa: RUF012
    BITWISE = {}  # noqa: RUF012
    JSON_OPERATORS = {}  # noqa: RUF012
    EXPONENT = {}  # noqa: RUF012
    TERM = {TokenType.PLUS: exp.Add, TokenType.DASH: exp.Sub}  # noqa: RUF012
    FACTOR = {  # noqa: RUF012
        TokenType.STAR: exp.Mul,
        TokenType.SLASH: exp.Div,
        TokenType.DIV: exp.IntDiv,
        TokenType.MOD: exp.Mod,
    }
    RANGE_PARSERS = {  # noqa: RUF012
        TokenType.IN: lambda self, this: self.rule_in(this),
        TokenType.BETWEEN: lambda self, this: self.rule_between(this),
        TokenType.IS: lambda self, this: self.rule_is(this),
        TokenType.LIKE: _binary(exp.Like),
        TokenType.RLIKE: _binary(exp.RegexpLike),
        TokenType.IRLIKE: _binary(TopicMatch),
    }

    # Statement

    def _parse_statement(self) -> exp.Expr | None:
        is_foreach = self._curr.token_type == TokenType.FOR
        self._advance()
        if self._word("DISTINCT") and self._begins_operand():
            self.fail("DISTINCT is not supported", hint="GROUP BY keys and a window")
        made = Statement(
            is_foreach=is_foreach,
            items=self._items(is_foreach=is_foreach),
            do=self._items() if is_foreach and self._match(TokenType.EXECUTE) else None,
            incase=self._condition() if is_foreach and self._match(TokenType.QUALIFY) else None,
        )
        self._expect(TokenType.FROM, "expected a comma or FROM", hint=self._refused())
        made.set("filters", self._filters())
        made.set("decoding", self._decoding())
        made.set("alias", self._alias())
        made.set("joins", self._joins())
        made.set("where", self._condition() if self._match(TokenType.WHERE) else None)
        made.set("group", self._group())
        made.set("having", self._condition() if self._match_word("HAVING") else None)
        if self._curr:
            self.fail(self._refused() or "nothing more was expected here")
        return made

    def _refused(self) -> str:
        return _REFUSED.get(self._curr.text.upper(), "") if self._curr else ""

    def _word(self, *words: str) -> bool:
        """Tell whether the next token is one of the words, which are no keywords."""
        token = self._curr
        return bool(token) and token.token_type == TokenType.VAR and token.text.upper() in words

    def _match_word(self, *words: str) -> bool:
        found = self._word(*words)
        if found:
            self._advance()
        return found

    def _expect(self, kind: TokenType, problem: str, *, hint: str = "") -> None:
        """Take the next token, which has to be of a kind."""
        if not self._match(kind):
            self.fail(problem, hint=hint)

    def _begins_operand(self) -> bool:
        """Tell whether an operand could begin behind the next token, so that it is no name."""
        return bool(self._next) and (
            self._next.token_type in _OPERANDS or self._next.token_type == TokenType.STAR
        )

    def _filters(self) -> list[exp.Expr]:
        return self._parse_csv(self._filter)

    def _alias(self) -> str | None:
        """Parse the name of a source; without AS only where a clause follows."""
        is_named = self._match(TokenType.ALIAS)
        if not is_named:
            follows = bool(self._next) and self._next.text.upper() in _CLAUSES
            is_named = follows and self._curr.token_type == TokenType.VAR
            if not is_named or self._word(*_CLAUSES, *_REFUSED):
                return None
        alias = self._key("expected a name after AS")
        if self._match(TokenType.COMMA, advance=False):
            self.fail("several topic filters have one name, behind the last of them")
        return alias

    def _joins(self) -> list[exp.Expr]:
        joins: list[exp.Expr] = []
        while self._curr:
            token = self._curr
            is_left = self._match_word("LEFT")
            if is_left:
                self._match_word("OUTER")
            else:
                self._match_word("INNER")
            if self._match_word("JOIN"):
                joins.append(self._join(token, is_left=is_left))
            elif token is self._curr:
                break
            else:
                self.fail("expected JOIN")
        return joins

    def _join(self, token: Token, *, is_left: bool) -> exp.Expr:
        made = Join(is_left=is_left)
        if self._is_quoted_filter():
            made.set("filters", self._filters())
            made.set("decoding", self._decoding())
        else:
            made.set("table", self._table())
        made.set("alias", self._alias())
        if self._word("WITHIN"):
            self.fail("expected ON and a condition before WITHIN")
        if not self._match_word("ON"):
            problem = "expected ON and a condition"
            self.fail(problem, hint=self._refused() or "JOIN machines ON machines.id = topic(2)")
        made.set("on", self._condition())
        if self._match_word("WITHIN"):
            made.set("within", self._span("expected a span of time after WITHIN"))
        if self._match_word("LATENESS"):
            made.set("lateness", self._span("expected a span of time after LATENESS"))
        return self.at(made, token, self._prev)

    def _is_quoted_filter(self) -> bool:
        token = self._curr
        if not token:
            return False
        is_backtick = self.sql[token.start : token.start + 1] == "`"
        return token.token_type in (TokenType.IDENTIFIER, TokenType.STRING) and not is_backtick

    def _table(self) -> exp.Expr:
        token = self._curr
        if self._match(TokenType.L_PAREN, advance=False):
            self.fail(
                "JOIN takes a reference table or a topic filter; subqueries are not supported"
            )
        name = self._key("expected a reference table or a topic filter in quotes after JOIN")
        if self._match_set((TokenType.DOT, TokenType.L_PAREN), advance=False):
            self.fail("a reference table has a plain name")
        return self.at(JoinedTable(this=name), token, self._prev)

    def _span(self, problem: str) -> exp.Expr:
        self._expect(TokenType.STRING, problem, hint="for example '30 seconds'")
        return self.at(exp.Literal.string(self._prev.text), self._prev, self._prev)

    def _group(self) -> list[exp.Expr]:
        if not self._match_word("GROUP"):
            return []
        if not self._match_word("BY"):
            self.fail("expected BY after GROUP")
        return self._parse_csv(self._condition)

    def _items(self, *, is_foreach: bool = False) -> list[exp.Expr]:
        return self._parse_csv(lambda: self._item(is_foreach=is_foreach))

    def _item(self, *, is_foreach: bool) -> exp.Expr:
        if not is_foreach and self._match(TokenType.STAR):
            star = self._prev
            return self.at(Item(this=self.at(exp.Star(), star, star), path=None), star, self._prev)
        this = self._condition()
        path = None
        if self._match(TokenType.ALIAS):
            path = self._name("expected a name after AS")
        elif self._curr and self._curr.token_type in (TokenType.VAR, TokenType.IDENTIFIER):
            if self._refused() or self._word(*_CLAUSES):
                self.fail(self._refused() or "expected a comma or FROM")
            path = self._name("expected a name")
        return self.node(Item(this=this, path=path), this)

    def _name(self, problem: str) -> list[str]:
        names = [self._key(problem)]
        while self._match(TokenType.DOT):
            names.append(self._key("expected a name after the dot"))
        if self._match(TokenType.L_BRACKET, advance=False):
            self.fail("a name given with AS has no index")
        return names

    def _filter(self) -> exp.Expr:
        if not self._match_set((TokenType.IDENTIFIER, TokenType.STRING)):
            if self._match(TokenType.L_PAREN, advance=False):
                self.fail("FROM takes topic filters; subqueries are not supported")
            self.fail(
                "expected a topic filter in quotes after FROM",
                hint='for example FROM "plant/+/temp"',
            )
        token = self._prev
        return self.at(Filter(this=token.text), token, token)

    def _decoding(self) -> exp.Expr | None:
        token = self._curr
        if not token or token.token_type != TokenType.VAR or token.text.upper() != "DECODE":
            return None
        self._advance()
        schema = self._text("the name of a schema in quotes after DECODE")
        message_type = None
        if self._match(TokenType.COMMA):
            message_type = self._text("a message type in quotes")
        return self.at(Decoding(this=schema, message_type=message_type), token, self._prev)

    def _text(self, expected: str) -> str:
        if not self._match_set((TokenType.IDENTIFIER, TokenType.STRING)):
            self.fail(f"expected {expected}")
        return str(self._prev.text)

    def _condition(self) -> exp.Expr:
        this = self._parse_disjunction()
        if this is None:  # pragma: no cover - each operand refuses a missing part first
            self.fail("expected an expression")
        return this

    # Operators

    def operand_of_comparison(self) -> exp.Expr:
        this = self._parse_bitwise()
        if this is None:  # pragma: no cover - likewise
            self.fail("expected an expression")
        return this

    def rule_in(self, this: exp.Expr) -> exp.Expr:
        if not self._match(TokenType.L_PAREN):
            self.fail(
                "expected a list in parentheses after IN", hint="for an array: contains(x, array)"
            )
        return self.node(exp.In(this=this, expressions=self._list(TokenType.R_PAREN)), this)

    def rule_between(self, this: exp.Expr) -> exp.Expr:
        low = self.operand_of_comparison()
        self._expect(TokenType.AND, "expected AND after the lower bound of BETWEEN")
        high = self.operand_of_comparison()
        return self.node(exp.Between(this=this, low=low, high=high), this)

    def rule_is(self, this: exp.Expr) -> exp.Expr:
        negated = self._match(TokenType.NOT)
        if self._match(TokenType.NULL):
            kind: exp.Expr = exp.Null()
        elif self._match_set((TokenType.TRUE, TokenType.FALSE)):
            kind = exp.Boolean(this=self._prev.token_type == TokenType.TRUE)
        else:
            self.fail("expected NULL, TRUE or FALSE after IS")
        made = self.node(exp.Is(this=this, expression=kind), this)
        return self.node(exp.Not(this=made), this) if negated else made

    def _parse_unary(self) -> exp.Expr | None:
        token = self._curr
        if not token:
            self.fail("expected an expression")
        if self._match(TokenType.NOT):
            inner = self._parse_equality()
            return self.at(exp.Not(this=inner), token, self._prev)
        if self._match(TokenType.DASH):
            return self.at(exp.Neg(this=self._parse_unary()), token, self._prev)
        if self._match(TokenType.PLUS):
            return self._parse_unary()
        return self._operand(token)

    # Operands

    def _operand(self, token: Token) -> exp.Expr:
        kind = token.token_type
        if kind in _CONSTANTS:
            self._advance()
            return self.at(_CONSTANTS[kind](token.text), token, token)
        if kind == TokenType.CASE:
            return self._case(token)
        if kind == TokenType.L_PAREN:
            return self._parenthesis(token)
        if kind == TokenType.L_BRACKET:
            self._advance()
            return self.at(ListOf(expressions=self._list(TokenType.R_BRACKET)), token, self._prev)
        if kind == TokenType.SELECT:
            self.fail("subqueries are not supported")
        if kind not in (TokenType.VAR, TokenType.IDENTIFIER, TokenType.MOD):
            self.fail("expected an expression")
        return self._path_or_call(token)

    def _parenthesis(self, token: Token) -> exp.Expr:
        self._advance()
        inner = self._condition()
        self._expect(TokenType.R_PAREN, "expected a closing parenthesis", hint=self._refused())
        return self.at(exp.Paren(this=inner), token, self._prev)

    def _list(self, closing: TokenType) -> list[exp.Expr]:
        if self._match(closing):
            return []
        made = self._parse_csv(self._argument)
        self._expect(closing, "expected a comma or the end of the list", hint=self._refused())
        return made

    def _argument(self) -> exp.Expr:
        if self._next and self._next.token_type == TokenType.FARROW:
            token = self._curr
            name = self._key("expected a name before =>")
            self._advance()
            return self.at(
                Named(this=name.lower(), expression=self._condition()), token, self._prev
            )
        return self._condition()

    def _case(self, token: Token) -> exp.Expr:
        self._advance()
        subject = None if self._match(TokenType.WHEN, advance=False) else self._condition()
        branches: list[exp.Expr] = []
        while self._match(TokenType.WHEN):
            when = self._condition()
            self._expect(TokenType.THEN, "expected THEN")
            branches.append(self.node(exp.If(this=when, true=self._condition()), when))
        if not branches:
            self.fail("expected WHEN")
        default = self._condition() if self._match(TokenType.ELSE) else None
        self._expect(TokenType.END, "expected WHEN, ELSE or END")
        return self.at(exp.Case(this=subject, ifs=branches, default=default), token, self._prev)

    def _path_or_call(self, token: Token) -> exp.Expr:
        name = self._key("expected a name")
        is_quoted = token.token_type == TokenType.IDENTIFIER
        if not is_quoted and self._match(TokenType.L_PAREN):
            return self._call(token, name)
        if not is_quoted and token.token_type != TokenType.VAR:
            self._retreat(self._index - 1)
            self.fail("expected an expression")
        if not is_quoted and name.upper() == "INTERVAL" and self._match_set(_SPANS, advance=False):
            return self._interval(token)
        segments = self._segments()
        if segments and self._match(TokenType.L_PAREN, advance=False):
            self.fail("functions of other modules cannot be called")
        return self.at(Path(this=name, segments=segments), token, self._prev)

    def _interval(self, token: Token) -> exp.Expr:
        """Parse `INTERVAL '30 seconds'`, and `INTERVAL '30' SECOND` as SQL has it."""
        written = self._curr.text
        self._advance()
        if written.strip().isdecimal():
            written = f"{written} {self._key('expected a unit: INTERVAL 30 SECONDS')}"
        return self.at(Interval(this=written), token, self._prev)

    def _call(self, token: Token, name: str) -> exp.Expr:
        is_distinct = False
        if name.lower() == "cast":
            arguments = self._cast_arguments()
        elif name.lower() == "count" and self._match(TokenType.STAR):
            arguments = [self.at(exp.Star(), self._prev, self._prev)]
            self._expect(TokenType.R_PAREN, "expected a closing parenthesis")
        else:
            is_distinct = self._word("DISTINCT") and self._begins_operand()
            if is_distinct:
                self._advance()
            arguments = self._list(TokenType.R_PAREN)
        call = Call(this=name.lower(), expressions=arguments, distinct=is_distinct)
        if self._word("FILTER") and self._next and self._next.token_type == TokenType.L_PAREN:
            call.set("where", self._filter_of_aggregate())
        if self._refused():
            self.fail(self._refused())
        self.at(call, token, self._prev)
        segments = self._segments()
        if not segments:
            return call
        if self._match(TokenType.L_PAREN, advance=False):
            self.fail("a field cannot be called")
        return self.at(Inside(this=call, segments=segments), token, self._prev)

    def _filter_of_aggregate(self) -> exp.Expr:
        self._advance(2)
        self._expect(TokenType.WHERE, "expected WHERE and a condition")
        condition = self._condition()
        self._expect(TokenType.R_PAREN, "expected a closing parenthesis")
        return condition

    def _cast_arguments(self) -> list[exp.Expr]:
        value = self._condition()
        self._expect(TokenType.ALIAS, "expected AS and a type")
        token = self._curr
        kind = self._key("expected a type")
        self._expect(TokenType.R_PAREN, "expected a closing parenthesis after the type")
        return [value, self.at(exp.Literal.string(kind), token, token)]

    def _segments(self) -> list[Segment]:
        segments: list[Segment] = []
        while True:
            if self._match(TokenType.DOT):
                segments.append(self._key("expected a field after the dot"))
            elif self._match(TokenType.L_BRACKET, advance=False) and (range_ := self._range()):
                segments.append(range_)
            elif self._match(TokenType.L_BRACKET):
                segments.append(self._index_of_element())
                self._expect(TokenType.R_BRACKET, "expected a closing bracket")
            else:
                return segments

    def _range(self) -> tuple[int, int] | None:
        """Parse `[1..3]`, whose dots the tokens do not show as such."""
        opening = self._curr
        found = _RANGE.match(self.sql, opening.start)
        if found is None:
            return None
        while self._curr and self._curr.start < found.end():
            self._advance()
        first, last = int(found[1]), int(found[2])
        if 0 in (first, last):
            self._retreat(self._index - 1)
            self.fail("there is no element 0", hint="the first element is [1], the last [-1]")
        return first, last

    def _index_of_element(self) -> int:
        is_negative = bool(self._match(TokenType.DASH))
        if not self._match(TokenType.NUMBER) or not self._prev.text.isdecimal():
            self.fail("an index is a whole number", hint="the first element is [1], the last [-1]")
        if len(self._prev.text) > 9:
            self.fail("the index is too large")
        index = int(self._prev.text)
        if index == 0:
            self.fail("there is no element 0", hint="the first element is [1], the last [-1]")
        return -index if is_negative else index

    def _key(self, problem: str) -> str:
        token = self._curr
        if not token or token.token_type == TokenType.STAR:
            self.fail(problem)
        is_word = token.text.replace("_", "").replace("$", "").isalnum()
        is_quoted = token.token_type in (TokenType.IDENTIFIER, TokenType.STRING)
        if not (is_quoted or is_word):
            self.fail(problem)
        self._advance()
        return token.text

    # Places in the text

    def expression(
        self, instance: Any, token: Token | None = None, comments: list[str] | None = None
    ) -> Any:
        """Give the nodes that sqlglot makes their place too; its other checks are not needed."""
        first = instance.args.get("this")
        return self.node(instance, first if isinstance(first, exp.Expr) else None)

    def node(self, made: Node, first: exp.Expr | None) -> Node:
        """Place a node from the beginning of its first part to the last token read."""
        meta = made.meta
        meta["start"] = self._prev.start if first is None else first.meta.get("start", 0)
        meta["end"] = self._prev.end
        return made

    @staticmethod
    def at(made: Node, first: Token, last: Token) -> Node:
        """Place a node from one token to another."""
        made.meta["start"] = first.start
        made.meta["end"] = last.end
        return made

    def fail(self, problem: str, *, hint: str = "") -> NoReturn:
        """Refuse the statement at the token that comes next."""
        token = self._curr if self._curr else None
        hint = hint or self._meant() or _SHAPE
        if token is None:
            raise RuleError.at(self.sql, len(self.sql.rstrip()), len(self.sql), problem, hint)
        raise RuleError.at(self.sql, token.start, token.end + 1, problem, hint)

    def _meant(self) -> str:
        """Say which keyword the next word, or the one before it, may have been meant for."""
        known = (*_KEYWORDS, *_CLAUSES)
        for at in (self._index, self._index - 1):
            if not 0 <= at < len(self._tokens):
                continue
            token = self._tokens[at]
            is_field = at > 0 and self._tokens[at - 1].token_type == TokenType.DOT
            if token.token_type != TokenType.VAR or is_field:
                continue
            for keyword in get_close_matches(token.text.upper(), known, 1, 0.75):
                return f"did you mean {keyword} in place of {token.text[:100]}?"
        return ""


class RuleDialect(Spark):
    """sqlglot's dialect of the rule language."""

    IDENTIFIERS_CAN_START_WITH_DIGIT = True

    class Tokenizer(BaseTokenizer):
        QUOTES = ["'"]  # noqa: RUF012 - sqlglot's declarations, here and below
        IDENTIFIERS = ['"', "`"]  # noqa: RUF012
        STRING_ESCAPES = ["'"]  # noqa: RUF012
        HEX_STRINGS = []  # noqa: RUF012
        NUMERIC_LITERALS = {}  # noqa: RUF012
        COMMANDS = set()  # noqa: RUF012
        VAR_SINGLE_TOKENS = {"$"}  # noqa: RUF012
        KEYWORDS = {  # noqa: RUF012
            **_KEYWORDS,
            "=>": TokenType.FARROW,
            "=~": TokenType.IRLIKE,
            "==": TokenType.EQ,
            "!=": TokenType.NEQ,
            "<>": TokenType.NEQ,
            "<=": TokenType.LTE,
            ">=": TokenType.GTE,
            "||": TokenType.DPIPE,
        }

    Parser = RuleParser
