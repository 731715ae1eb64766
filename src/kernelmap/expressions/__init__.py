"""Typed expression languages of maps, contracts and circuits: parsed to trees, never evaluated as Python."""

from kernelmap.expressions.errors import ExpressionError
from kernelmap.expressions.fields import Predicate, ScalarExpr, SizeExpr
from kernelmap.expressions.tree import Env

__all__ = ["Env", "ExpressionError", "Predicate", "ScalarExpr", "SizeExpr"]
