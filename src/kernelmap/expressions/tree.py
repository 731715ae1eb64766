"""Expression trees: nodes, their values, and what they refer to."""

from __future__ import annotations

import operator
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from kernelmap.expressions.errors import ExpressionError
from kernelmap.vocabulary import FORMATS

Scalar = bool | int | float | str
Kind = typing.Literal["number", "text", "truth value"]
LIMIT = 2**63


def _has_nothing(_name: str) -> bool:
    return False


def _no_shape(_name: str) -> tuple[int, ...]:
    return ()


@dataclass(frozen=True, slots=True)
class Env:
    """What names mean: plain names (dims, params), config, options, the layer, and the model's tensors."""

    names: Mapping[str, Scalar] = field(default_factory=dict)
    config: Mapping[str, Scalar | tuple[Scalar, ...]] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    layer: int | None = None
    has: Callable[[str], bool] = _has_nothing
    shape: Callable[[str], tuple[int, ...]] = _no_shape


@dataclass(frozen=True, slots=True)
class Node:
    """A node with its place in the text."""

    offset: int
    width: int

    def children(self) -> tuple[Node, ...]:
        """Nodes below this one."""
        return ()

    def value(self, env: Env) -> Scalar:
        """The node's value. Raises ExpressionError where there is none."""
        raise self.fail("KM111", "an abstract node")

    def text(self) -> str:
        """Canonical text: parsing it gives an equal tree."""
        raise self.fail("KM111", "an abstract node")

    def fail(self, code: str, message: str, help: str = "", near: tuple[str, ...] = ()) -> ExpressionError:
        """An error at this node."""
        return ExpressionError(code, message, self.offset, self.width, help, near)


def walk(node: Node) -> Iterator[Node]:
    """The node and all below it."""
    yield node
    for child in node.children():
        yield from walk(child)


@dataclass(frozen=True, slots=True)
class Literal(Node):
    """A number, string or truth value."""

    constant: Scalar

    def value(self, env: Env) -> Scalar:
        """The constant."""
        return self.constant

    def text(self) -> str:
        """As written; a string in the quotes that it does not hold itself."""
        if isinstance(self.constant, bool):
            return "true" if self.constant else "false"
        if isinstance(self.constant, str):
            quote = '"' if "'" in self.constant else "'"
            return f"{quote}{self.constant}{quote}"
        return repr(self.constant)


@dataclass(frozen=True, slots=True)
class Name(Node):
    """A plain name: a dim or a parameter."""

    name: str

    def value(self, env: Env) -> Scalar:
        """What the environment says."""
        try:
            return env.names[self.name]
        except KeyError:
            raise self.fail("KM115", f"nothing gives {self.name!r}") from None

    def text(self) -> str:
        """The name."""
        return self.name


@dataclass(frozen=True, slots=True)
class Layer(Node):
    """The layer's number."""

    def value(self, env: Env) -> Scalar:
        """The number, inside a layer."""
        if env.layer is None:
            raise self.fail("KM116", "there is no layer here")
        return env.layer

    def text(self) -> str:
        """The word."""
        return "layer"


@dataclass(frozen=True, slots=True)
class Config(Node):
    """``config.name`` or ``config.array[index]``."""

    name: str
    index: Node | None

    def children(self) -> tuple[Node, ...]:
        """The index."""
        return (self.index,) if self.index is not None else ()

    def value(self, env: Env) -> Scalar:
        """The config value, or one of an array."""
        if self.name not in env.config:
            raise self.fail("KM115", f"the circuit has no config {self.name!r}")
        found = env.config[self.name]
        if self.index is None:
            if isinstance(found, tuple):
                raise self.fail("KM116", f"config.{self.name} is an array: write config.{self.name}[layer]")
            return found
        if not isinstance(found, tuple):
            raise self.fail("KM116", f"config.{self.name} is no array")
        at = whole(self.index, env)
        if not 0 <= at < len(found):
            raise self.fail("KM116", f"config.{self.name} has {len(found)} values, and index {at} is none of them")
        return found[at]

    def text(self) -> str:
        """As written."""
        return f"config.{self.name}" + (f"[{self.index.text()}]" if self.index is not None else "")


@dataclass(frozen=True, slots=True)
class Option(Node):
    """``option.name``."""

    name: str

    def value(self, env: Env) -> Scalar:
        """The user's choice."""
        try:
            return env.options[self.name]
        except KeyError:
            raise self.fail("KM115", f"the circuit has no option {self.name!r}") from None

    def text(self) -> str:
        """As written."""
        return f"option.{self.name}"


@dataclass(frozen=True, slots=True)
class Has(Node):
    """``has(tensor)``: whether the model has it."""

    tensor: str

    def value(self, env: Env) -> Scalar:
        """The answer for this layer."""
        return env.has(_filled(self.tensor, env))

    def text(self) -> str:
        """As written."""
        return f"has({self.tensor})"


@dataclass(frozen=True, slots=True)
class Shape(Node):
    """``shape(tensor)[i]``."""

    tensor: str
    index: Node

    def children(self) -> tuple[Node, ...]:
        """The index."""
        return (self.index,)

    def value(self, env: Env) -> Scalar:
        """One size of the tensor's shape."""
        name = _filled(self.tensor, env)
        shape, at = env.shape(name), whole(self.index, env)
        if not shape:
            raise self.fail("KM116", f"the model has no tensor {name}")
        if not 0 <= at < len(shape):
            raise self.fail("KM116", f"{name} has {len(shape)} axes, and {at} is none of them")
        return shape[at]

    def text(self) -> str:
        """As written."""
        return f"shape({self.tensor})[{self.index.text()}]"


@dataclass(frozen=True, slots=True)
class Not(Node):
    """``not x``."""

    operand: Node

    def children(self) -> tuple[Node, ...]:
        """The operand."""
        return (self.operand,)

    def value(self, env: Env) -> Scalar:
        """The opposite."""
        return not truth(self.operand, env)

    def text(self) -> str:
        """Parentheses only around what binds less than ``not``."""
        return f"not {_inside(self.operand, NOT_BINDING - 1)}"


@dataclass(frozen=True, slots=True)
class Binary(Node):
    """An operator between two nodes."""

    symbol: str
    left: Node
    right: Node

    def children(self) -> tuple[Node, ...]:
        """Both sides."""
        return (self.left, self.right)

    def value(self, env: Env) -> Scalar:
        """The result, exact for ints."""
        if self.symbol == "and":
            return truth(self.left, env) and truth(self.right, env)
        if self.symbol == "or":
            return truth(self.left, env) or truth(self.right, env)
        left, right = self.left.value(env), self.right.value(env)
        if self.symbol in _COMPARE:
            return self._compare(left, right)
        if isinstance(left, (bool, str)) or isinstance(right, (bool, str)):
            raise self.fail("KM116", f"{self.symbol} takes numbers, not {left!r} and {right!r}")
        if self.symbol in ("//", "%") and right == 0:
            raise self.fail("KM117", "division by zero")
        try:
            result = _ARITHMETIC[self.symbol](left, right)
        except OverflowError:  # a whole number beyond every float met a float
            raise self.fail("KM117", "the result overflows 64 bits") from None
        if not -LIMIT <= result < LIMIT:
            raise self.fail("KM117", "the result overflows 64 bits")
        return result

    def _compare(self, left: Scalar, right: Scalar) -> bool:
        numbers = not isinstance(left, (bool, str)) and not isinstance(right, (bool, str))
        if not numbers and (type(left) is not type(right) or self.symbol not in ("==", "!=")):
            raise self.fail("KM116", f"cannot compare {left!r} {self.symbol} {right!r}")
        return bool(_COMPARE[self.symbol](left, right))

    def text(self) -> str:
        """With the parentheses that the tree needs: more would nest deeper than the text that was parsed."""
        own = BINDING[self.symbol]
        left = _inside(self.left, own if self.symbol in COMPARISONS else own - 1)
        return f"{left} {self.symbol} {_inside(self.right, own)}"


@dataclass(frozen=True, slots=True)
class Call(Node):
    """``align64(x)``, ``ceil_div(a, b)``, ``min(a, b)``, ``max(a, b)``, ``<format>_row_bytes(x)``."""

    name: str
    arguments: tuple[Node, ...]

    def children(self) -> tuple[Node, ...]:
        """The arguments."""
        return self.arguments

    def value(self, env: Env) -> Scalar:
        """The result, exact."""
        given = [whole(argument, env) for argument in self.arguments]
        if self.name == "align64":
            result = -(-given[0] // 64) * 64
        elif self.name == "ceil_div":
            if given[1] == 0:
                raise self.fail("KM117", "division by zero")
            result = -(-given[0] // given[1])
        elif self.name == "min":
            result = min(given)
        elif self.name == "max":
            result = max(given)
        else:
            try:
                result = FORMATS[self.name.removesuffix("_row_bytes")].row_bytes(given[0])
            except ValueError as error:
                raise self.fail("KM117", str(error)) from None
        if result >= LIMIT:
            raise self.fail("KM117", "the result overflows 64 bits")
        return result

    def text(self) -> str:
        """As written."""
        return f"{self.name}({', '.join(argument.text() for argument in self.arguments)})"


ARITY: Mapping[str, int] = {
    "align64": 1, "ceil_div": 2, "min": 2, "max": 2, **{f"{name}_row_bytes": 1 for name in FORMATS}
}  # fmt: skip
"""Every function, with its number of arguments."""

_COMPARE: Mapping[str, Callable[[Scalar, Scalar], bool]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_ARITHMETIC: Mapping[str, Callable[[int | float, int | float], int | float]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv, "%": operator.mod,
}  # fmt: skip
COMPARISONS = frozenset(_COMPARE)
BOOLEAN = frozenset({"and", "or"})
BINDING: Mapping[str, int] = {
    "or": 1, "and": 2, **dict.fromkeys(_COMPARE, 4), "+": 5, "-": 5, "*": 6, "//": 6, "%": 6
}  # fmt: skip
"""How tightly operators bind. Equal ones group from the left; comparisons do not chain."""
NOT_BINDING = 3


def truth(node: Node, env: Env) -> bool:
    """The node's value, which must be a truth value."""
    found = node.value(env)
    if not isinstance(found, bool):
        raise node.fail("KM116", f"a truth value is needed, and this is {found!r}")
    return found


def whole(node: Node, env: Env) -> int:
    """The node's value, which must be a whole number."""
    found = node.value(env)
    if isinstance(found, bool) or not isinstance(found, int):
        raise node.fail("KM116", f"a whole number is needed, and this is {found!r}")
    return found


def kind_of(node: Node) -> Kind | None:
    """What a node gives, as far as its form tells; None for names and config, whose values decide."""
    if isinstance(node, (Has, Not)) or (isinstance(node, Binary) and node.symbol in COMPARISONS | BOOLEAN):
        return "truth value"
    if isinstance(node, Option) or (isinstance(node, Literal) and isinstance(node.constant, str)):
        return "text"
    if isinstance(node, Literal) and isinstance(node.constant, bool):
        return "truth value"
    if isinstance(node, (Literal, Binary, Call, Layer, Shape)):
        return "number"
    return None


def too_high(node: Node, limit: int) -> Node | None:
    """A node with ``limit`` nodes above it, if there is one: values and texts recurse once a level."""
    level = [node]
    for _ in range(limit):
        level = [child for parent in level for child in parent.children()]
    return level[0] if level else None


def _inside(node: Node, binding: int) -> str:
    """The text of an operand, in parentheses unless it binds tighter than ``binding``."""
    own = BINDING[node.symbol] if isinstance(node, Binary) else NOT_BINDING if isinstance(node, Not) else None
    return node.text() if own is None or own > binding else f"({node.text()})"


def _filled(tensor: str, env: Env) -> str:
    return tensor if env.layer is None else tensor.replace("{layer}", str(env.layer))
