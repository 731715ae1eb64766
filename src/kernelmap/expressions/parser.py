"""Tokens and a precedence parser for all expression languages."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kernelmap.errors import nearest
from kernelmap.expressions import tree
from kernelmap.expressions.errors import ExpressionError
from kernelmap.expressions.tree import ARITY, BINDING, BOOLEAN, COMPARISONS, NOT_BINDING, Kind, Node

MAX_LENGTH = 1000
MAX_DEPTH = 32
MAX_HEIGHT = 100

_TOKEN = re.compile(
    r"\s*(?:(?P<number>[0-9]+\.[0-9]+(?:[eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+|[0-9]+)"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<string>'[^']*'|\"[^\"]*\")"
    r"|(?P<mark>//|==|!=|<=|>=|[-+*%<>(),.\[\]]))"
)
_TENSOR = re.compile(r"\s*(?P<quote>['\"]?)(?P<tensor>[\w.\-/]+(?:\{layer\}[\w.\-/]*)*)(?P=quote)\s*\)")
_SIZE_MARKS = frozenset({"+", "-", "*", "//", "(", ")", ","})


@dataclass(frozen=True, slots=True)
class Token:
    """A word of an expression."""

    kind: str
    text: str
    offset: int


def parse(text: str, *, sizes_only: bool) -> Node:
    """The tree of an expression; ``sizes_only`` leaves ints, names, ``+ - * //``, functions. Raises ExpressionError."""
    if len(text) > MAX_LENGTH:
        raise ExpressionError("KM111", f"longer than {MAX_LENGTH} characters", MAX_LENGTH, 1)
    parser = _Parser(text, sizes_only)
    node = parser.expression(0, 0)
    parser.end()
    high = tree.too_high(node, MAX_HEIGHT)
    if high is not None:
        raise ExpressionError("KM111", f"more than {MAX_HEIGHT} operators in a row", high.offset, high.width)
    if len(node.text()) > MAX_LENGTH:  # plans hold canonical texts, and must be readable again
        raise ExpressionError("KM111", f"longer than {MAX_LENGTH} characters when written with spaces", 0, len(text))
    return node


class _Parser:
    def __init__(self, text: str, sizes_only: bool) -> None:
        self.text, self.sizes_only, self.at = text, sizes_only, 0
        self.token = self._next()

    def _next(self) -> Token:
        rest = self.text[self.at :]
        if not rest.strip():
            return Token("end", "", len(self.text))
        match = _TOKEN.match(self.text, self.at)
        if match is None:
            offset = self.at + len(rest) - len(rest.lstrip())
            raise ExpressionError("KM111", f"{self.text[offset]!r} means nothing here", offset)
        self.at = match.end()
        kind = str(match.lastgroup)
        return Token(kind, match[kind], match.start(kind))

    def _take(self) -> Token:
        taken, self.token = self.token, self._next()
        return taken

    def _want(self, mark: str) -> Token:
        if self.token.kind != "mark" or self.token.text != mark:
            raise self._unexpected(f"{mark!r} is needed")
        return self._take()

    def _unexpected(self, need: str) -> ExpressionError:
        found = f"{self.token.text!r}" if self.token.text else "the end"
        return ExpressionError("KM111", f"{need}, not {found}", self.token.offset, max(1, len(self.token.text)))

    def end(self) -> None:
        if self.token.kind != "end":
            raise self._unexpected("an operator or the end is needed")

    def expression(self, binding: int, depth: int) -> Node:
        if depth > MAX_DEPTH:
            raise ExpressionError("KM111", f"nested more than {MAX_DEPTH} deep", self.token.offset)
        left = self._operand(binding, depth)
        while (symbol := self._operator()) and BINDING[symbol] > binding:
            token = self._take()
            if self.sizes_only and symbol not in _SIZE_MARKS:
                raise ExpressionError("KM112", f"{symbol!r} has no place in a size", token.offset, len(symbol))
            right = self.expression(BINDING[symbol], depth + 1)
            left = self._binary(symbol, left, right)
            if symbol in COMPARISONS and self._operator() in COMPARISONS:
                raise ExpressionError(
                    "KM111", "comparisons do not chain", self.token.offset, len(self.token.text), "use and"
                )
        return left

    def _operator(self) -> str:
        return self.token.text if self.token.text in BINDING and self.token.kind in ("mark", "name") else ""

    def _binary(self, symbol: str, left: Node, right: Node) -> Node:
        if symbol in ("==", "!="):
            kinds = tree.kind_of(left), tree.kind_of(right)
            if None not in kinds and kinds[0] != kinds[1]:
                raise right.fail("KM113", f"a {kinds[0]} is never equal to a {kinds[1]}")
        else:
            need: Kind = "truth value" if symbol in BOOLEAN else "number"
            for side in (left, right):
                _check(side, need, repr(symbol))
        return tree.Binary(left.offset, right.offset + right.width - left.offset, symbol, left, right)

    def _operand(self, binding: int, depth: int) -> Node:
        token = self.token
        if token.kind == "number":
            return self._number()
        if token.kind == "mark" and token.text == "(":
            self._take()
            inner = self.expression(0, depth + 1)
            self._want(")")
            return inner
        if token.kind == "mark" and token.text == "-" and not self.sizes_only:
            self._take()
            literal = self._number()
            assert isinstance(literal.constant, (int, float))
            return tree.Literal(token.offset, literal.width + 1, -literal.constant)
        if token.kind == "string" and not self.sizes_only:
            self._take()
            return tree.Literal(token.offset, len(token.text), token.text[1:-1])
        if token.kind == "name":
            return self._named(binding, depth)
        raise self._unexpected("a value is needed")

    def _number(self) -> tree.Literal:
        if self.token.kind != "number":
            raise self._unexpected("a number is needed")
        token = self._take()
        whole = token.text.isdigit()
        if (whole and (len(token.text) > 19 or int(token.text) >= tree.LIMIT)) or (self.sizes_only and not whole):
            raise ExpressionError("KM112", "not a 64-bit whole number", token.offset, len(token.text))
        constant = int(token.text) if whole else float(token.text)
        if constant == float("inf"):
            raise ExpressionError("KM112", "not a finite number", token.offset, len(token.text))
        return tree.Literal(token.offset, len(token.text), constant)

    def _named(self, binding: int, depth: int) -> Node:
        token = self._take()
        called = self.token.kind == "mark" and self.token.text == "("
        if called and token.text in ("has", "shape") and not self.sizes_only:
            return self._about_tensor(token, depth)
        if called and token.text != "not":
            return self._call(token, depth)
        if self.sizes_only:
            return tree.Name(token.offset, len(token.text), token.text)
        if token.text == "not":
            if binding > NOT_BINDING:
                raise ExpressionError("KM111", "'not' needs parentheses here", token.offset, 3, "write (not …)")
            operand = self.expression(NOT_BINDING, depth + 1)
            _check(operand, "truth value", "'not'")
            return tree.Not(token.offset, operand.offset + operand.width - token.offset, operand)
        if token.text in ("true", "false"):
            return tree.Literal(token.offset, len(token.text), token.text == "true")
        if token.text in ("and", "or"):
            raise ExpressionError("KM111", f"a value is needed, not {token.text!r}", token.offset, len(token.text))
        if token.text == "layer":
            return tree.Layer(token.offset, len(token.text))
        if token.text in ("config", "option") and self.token.text == ".":
            return self._member(token, depth)
        return tree.Name(token.offset, len(token.text), token.text)

    def _member(self, token: Token, depth: int) -> Node:
        self._want(".")
        if self.token.kind != "name":
            raise self._unexpected("a name is needed")
        name = self._take()
        width = name.offset + len(name.text) - token.offset
        if token.text == "option":
            return tree.Option(token.offset, width, name.text)
        index: Node | None = None
        if self.token.text == "[":
            self._take()
            index = self._whole("an index", depth)
            width = self._want("]").offset + 1 - token.offset
        return tree.Config(token.offset, width, name.text, index)

    def _about_tensor(self, token: Token, depth: int) -> Node:
        match = _TENSOR.match(self.text, self.at)
        if match is None:
            help = f"write {token.text}('blk.{{layer}}.name')"
            raise ExpressionError("KM111", f"{token.text}() takes one tensor name", token.offset, len(token.text), help)
        self.at = match.end()
        self.token = self._next()
        if token.text == "has":
            return tree.Has(token.offset, match.end() - token.offset, match["tensor"])
        self._want("[")
        index = self._whole("an index", depth)
        end = self._want("]").offset + 1
        return tree.Shape(token.offset, end - token.offset, match["tensor"], index)

    def _whole(self, taker: str, depth: int) -> Node:
        node = self.expression(0, depth + 1)
        _check(node, "number", taker)
        return node

    def _call(self, token: Token, depth: int) -> Node:
        if token.text not in ARITY:
            near = nearest(token.text, ARITY)
            raise ExpressionError("KM114", f"no function {token.text!r}", token.offset, len(token.text), near=near)
        self._want("(")
        arguments = [self._whole(token.text, depth)]
        while self.token.text == ",":
            self._take()
            arguments.append(self._whole(token.text, depth))
        end = self._want(")").offset + 1
        if len(arguments) != ARITY[token.text]:
            message = f"{token.text} takes {ARITY[token.text]} arguments, not {len(arguments)}"
            raise ExpressionError("KM114", message, token.offset, end - token.offset)
        return tree.Call(token.offset, end - token.offset, token.text, tuple(arguments))


def _check(node: Node, need: Kind, taker: str) -> None:
    """Refuses an operand whose form tells that it is of another kind than is needed."""
    kind = tree.kind_of(node)
    if kind is not None and kind != need:
        raise node.fail("KM113", f"{taker} takes a {need}, not a {kind}")
