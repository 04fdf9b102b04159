"""Parsing expressions.

The operators and their precedence are sqlglot's; operands are parsed here, so that a tree holds no
subqueries, no types and no functions that sqlglot knows and the language does not.
"""

import re
from collections.abc import Callable
from typing import Final

from sqlglot import exp
from sqlglot.tokenizer_core import Token, TokenType

from rules.language.syntax.nodes import Call, Inside, Interval, ListOf, Named, Path, TopicMatch
from rules.language.syntax.tokens import TokenParser
from rules.language.values import Segment

_CONSTANTS: Final[dict[TokenType, Callable[[str], exp.Expr]]] = {
    TokenType.NUMBER: exp.Literal.number,
    TokenType.STRING: exp.Literal.string,
    TokenType.NULL: lambda _text: exp.Null(),
    TokenType.TRUE: lambda _text: exp.Boolean(this=True),
    TokenType.FALSE: lambda _text: exp.Boolean(this=False),
}
_SPANS: Final = frozenset((TokenType.STRING, TokenType.NUMBER))
_RANGE: Final = re.compile(r"\[\s*(-?[0-9]{1,9})\s*\.\.\s*(-?[0-9]{1,9})\s*\]")


def _binary(kind: type[exp.Binary]) -> Callable[["ExpressionParser", exp.Expr], exp.Expr]:
    def parse(parser: "ExpressionParser", left: exp.Expr) -> exp.Expr:
        return parser.node(kind(this=left, expression=parser.operand_of_comparison()), left)

    return parse


class ExpressionParser(TokenParser):
    """sqlglot's parser with the operands of the rule language."""

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
        TokenType.LIKE: lambda self, this: self.rule_like(this),
        TokenType.RLIKE: _binary(exp.RegexpLike),
        TokenType.IRLIKE: _binary(TopicMatch),
    }

    # Operators

    def _condition(self) -> exp.Expr:
        this = self._parse_disjunction()
        if this is None:  # pragma: no cover - each operand refuses a missing part first
            self.fail("expected an expression")
        return this

    def operand_of_comparison(self) -> exp.Expr:
        this = self._parse_bitwise()
        if this is None:  # pragma: no cover - as above
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

    def rule_like(self, this: exp.Expr) -> exp.Expr:
        made = _binary(exp.Like)(self, this)
        if not self._match_word("ESCAPE"):
            return made
        self._expect(TokenType.STRING, "expected a character in single quotes after ESCAPE")
        escape = self.at(exp.Literal.string(self._prev.text), self._prev, self._prev)
        return self.node(exp.Escape(this=made, expression=escape), this)

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

    # Calls

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
