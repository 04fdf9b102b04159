"""Parsing a rule: its clauses, each in its place."""

from sqlglot import exp
from sqlglot.tokenizer_core import Token, TokenType

from rules.language.syntax.expressions import ExpressionParser
from rules.language.syntax.keywords import CLAUSES, REFUSED
from rules.language.syntax.nodes import Decoding, Filter, Item, Join, JoinedTable, Statement


class RuleParser(ExpressionParser):
    """sqlglot's parser with the clauses and operands of the rule language."""

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
            if self._refused() or self._word(*CLAUSES):
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

    def _filters(self) -> list[exp.Expr]:
        return self._parse_csv(self._filter)

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

    def _alias(self) -> str | None:
        """Parse the name of a source; without AS only where a clause follows."""
        is_named = self._match(TokenType.ALIAS)
        if not is_named:
            follows = bool(self._next) and self._next.text.upper() in CLAUSES
            is_named = follows and self._curr.token_type == TokenType.VAR
            if not is_named or self._word(*CLAUSES, *REFUSED):
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
