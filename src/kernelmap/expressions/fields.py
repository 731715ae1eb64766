"""Expressions as model fields: strings in files, parsed trees in models."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, lru_cache
from typing import Any, ClassVar, Self

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from kernelmap.expressions import tree
from kernelmap.expressions.errors import ExpressionError
from kernelmap.expressions.parser import MAX_LENGTH, parse
from kernelmap.expressions.tree import Env, Node, Scalar


class _Expression:
    """A parsed expression. Equal, hashed and printed by its canonical text."""

    description: ClassVar[str] = ""
    sizes_only: ClassVar[bool] = False

    def __init__(self, node: Node) -> None:
        self.node = node
        self.text = node.text()

    @classmethod
    def parse(cls, text: str) -> Self:
        """The expression of a text; equal texts share one. Raises ExpressionError."""
        parsed: Self = _parsed(cls, text)  # type: ignore[arg-type]  # mypy: a type is hashable
        return parsed

    @cached_property
    def names(self) -> frozenset[str]:
        """Plain names: dims and parameters."""
        return frozenset(node.name for node in tree.walk(self.node) if isinstance(node, tree.Name))

    @cached_property
    def config_names(self) -> frozenset[str]:
        """Names behind ``config.``."""
        return frozenset(node.name for node in tree.walk(self.node) if isinstance(node, tree.Config))

    @cached_property
    def option_names(self) -> frozenset[str]:
        """Names behind ``option.``."""
        return frozenset(node.name for node in tree.walk(self.node) if isinstance(node, tree.Option))

    @cached_property
    def tensors(self) -> frozenset[str]:
        """Tensor names (or patterns) in ``has`` and ``shape``."""
        return frozenset(node.tensor for node in tree.walk(self.node) if isinstance(node, (tree.Has, tree.Shape)))

    @cached_property
    def uses_layer(self) -> bool:
        """Whether the value depends on the layer."""
        return any(isinstance(node, tree.Layer) for node in tree.walk(self.node)) or any(
            "{layer}" in name for name in self.tensors
        )

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.text!r})"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and getattr(other, "text", None) == self.text

    def __hash__(self) -> int:
        return hash((type(self).__name__, self.text))

    @classmethod
    def _validate(cls, value: str) -> Self:
        try:
            return cls.parse(value)
        except ExpressionError as error:
            context: dict[str, Any] = {"code": error.code, "offset": error.offset, "width": error.width}
            context |= {"help": error.help, "near": error.near, "message": error.message}
            raise PydanticCustomError("expression", "{message}", context) from None

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: GetCoreSchemaHandler) -> CoreSchema:
        text = core_schema.no_info_after_validator_function(
            cls._validate, core_schema.str_schema(min_length=1, max_length=MAX_LENGTH)
        )
        return core_schema.json_or_python_schema(
            json_schema=text,
            python_schema=core_schema.union_schema([core_schema.is_instance_schema(cls), text]),
            serialization=core_schema.plain_serializer_function_ser_schema(str, return_schema=core_schema.str_schema()),
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, _schema: CoreSchema, _handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"type": "string", "minLength": 1, "maxLength": MAX_LENGTH, "description": cls.description}


@lru_cache(maxsize=32768)
def _parsed(kind: Any, text: str) -> Any:
    return kind(parse(text, sizes_only=kind.sizes_only))


class SizeExpr(_Expression):
    """A size: ints, dims, ``+ - * //``, ``align64``, ``ceil_div``, ``min``, ``max``, ``<format>_row_bytes``."""

    description = "Size expression: ints, dims, + - * //, align64(x), ceil_div(a, b), min, max, <format>_row_bytes(x)."
    sizes_only = True

    def evaluate(self, dims: Mapping[str, int]) -> int:
        """The size. Raises ExpressionError for an unknown dim, a negative result, overflow or division by zero."""
        found = tree.whole(self.node, Env(names=dims))
        if found < 0:
            raise self.node.fail("KM117", f"a size is not negative, and {self.text} is {found}")
        return found


class ScalarExpr(_Expression):
    """A scalar over config, options, dims, tensors and the layer, e.g. ``config.n_layer - 1``."""

    description = "Scalar expression: numbers, dims, config.name, config.array[layer], option.name, shape(tensor)[i]."

    def evaluate(self, env: Env) -> Scalar:
        """The value. Raises ExpressionError where there is none."""
        return self.node.value(env)


class Predicate(_Expression):
    """A truth value: comparisons, ``%``, ``and or not``, ``layer``, config, options, ``has()``, ``shape()[i]``."""

    description = "Predicate: comparisons, + - * // %, and, or, not, layer, config.x, option.x, has(t), shape(t)[i]."

    def __init__(self, node: Node) -> None:
        kind = tree.kind_of(node)
        if kind is not None and kind != "truth value":
            raise node.fail("KM113", f"a predicate is a truth value, not a {kind}")
        super().__init__(node)

    def evaluate(self, env: Env) -> bool:
        """Whether it holds. Raises ExpressionError where it has no value."""
        return tree.truth(self.node, env)
