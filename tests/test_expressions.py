"""The expression languages: exact arithmetic, refused nonsense, canonical text."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from kernelmap.expressions import Env, ExpressionError, Predicate, ScalarExpr, SizeExpr
from kernelmap.expressions.tree import Node
from kernelmap.vocabulary import FORMATS

ENV = Env(
    names={"H": 256, "K": 8, "mode": "clamp", "flag": True},
    config={"huge": 10**400, "n": 4, "heads": (4, 8, 8, 8), "eps": 1e-5, "name": "x"},
    options={"kv_cache": "fp16"},
    layer=1,
    has=lambda name: name == "blk.1.gate.weight",
    shape=lambda name: (3, 5) if name == "blk.1.w" else (),
)


@pytest.mark.parametrize(
    ("text", "dims", "value"),
    [
        ("align64(R * q8_k_row_bytes(H)) + 64", {"R": 3, "H": 256}, 960),
        ("2 + 3 * 4 - 1", {}, 13),
        ("(2 + 3) * 4 // 3", {}, 6),
        ("ceil_div(I, 8) * 1184", {"I": 9}, 2368),
        ("min(a, b) + max(a, b)", {"a": 2, "b": 7}, 9),
        ("q4_k_row_bytes(512)", {}, 288),
        ("9223372036854775807", {}, 2**63 - 1),
    ],
)
def test_sizes(text: str, dims: dict[str, int], value: int) -> None:
    assert SizeExpr.parse(text).evaluate(dims) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("layer % 2 == 1", True),
        ("not has(blk.{layer}.gate.weight)", False),
        ("has('blk.0.gate.weight') or has(\"blk.1.gate.weight\")", True),
        ("config.heads[layer] > config.n and layer < 3", True),
        ("config.heads[0] == 4", True),
        ("option.kv_cache == 'fp16'", True),
        ("shape(blk.{layer}.w)[1] == 5", True),
        ("config.eps < 0.001", True),
        ("mode == 'clamp' and flag", True),
        ("not (layer == 1 or false)", False),
        ("K <= 2 * (H // 64)", True),
        ("layer - 2 == -1", True),
    ],
)
def test_predicates(text: str, value: bool) -> None:
    assert Predicate.parse(text).evaluate(ENV) is value


@pytest.mark.parametrize(
    ("kind", "text", "code", "offset"),
    [
        (SizeExpr, "", "KM111", 0),
        (SizeExpr, "1 +", "KM111", 3),
        (SizeExpr, "1 + * 2", "KM111", 4),
        (SizeExpr, "(1", "KM111", 2),
        (SizeExpr, "1 2", "KM111", 2),
        (SizeExpr, "a % 2", "KM112", 2),
        (SizeExpr, "a < 2", "KM112", 2),
        (SizeExpr, "1.5", "KM112", 0),
        (SizeExpr, "-1", "KM111", 0),
        (SizeExpr, "99999999999999999999", "KM112", 0),
        (SizeExpr, "__import__('os')", "KM114", 0),
        (SizeExpr, "q9_k_row_bytes(1)", "KM114", 0),
        (SizeExpr, "min(1)", "KM114", 0),
        (SizeExpr, "a.b", "KM111", 1),
        (SizeExpr, "(" * 40 + "1" + ")" * 40, "KM111", 33),
        (SizeExpr, "1+" * 600 + "1", "KM111", 1000),
        (Predicate, "layer", "KM113", 0),
        (Predicate, "1 < 2 < 3", "KM111", 6),
        (Predicate, "layer and true", "KM113", 0),
        (Predicate, "(1 < 2) + 1 == 2", "KM113", 1),
        (Predicate, "1 == 'x'", "KM113", 5),
        (Predicate, "true == 1", "KM113", 8),
        (Predicate, "option.kv < 2", "KM113", 0),
        (Predicate, "config.a[true] == 1", "KM113", 9),
        (Predicate, "shape(x)['y'] == 1", "KM113", 9),
        (ScalarExpr, "1 < 'x'", "KM113", 4),
        (ScalarExpr, "align64(1 < 2)", "KM113", 8),
        (ScalarExpr, "1e999", "KM112", 0),
        (ScalarExpr, "layer + \u0663", "KM111", 8),
        (Predicate, "flag == not flag", "KM111", 8),
        (SizeExpr, "1+" * 499 + "1", "KM111", 0),
        (SizeExpr, "1,".join(["min("] * 33), "KM111", 196),
        (Predicate, "has()", "KM111", 0),
        (Predicate, "config == 1", None, 0),
    ],
)
def test_malformed(kind: Any, text: str, code: str | None, offset: int) -> None:
    if code is None:
        kind.parse(text)  # a plain name called config: refused where names are checked
        return
    with pytest.raises(ExpressionError) as caught:
        kind.parse(text)
    assert (caught.value.code, caught.value.offset) == (code, offset)
    assert caught.value.width >= 1


@pytest.mark.parametrize(
    ("kind", "text", "code"),
    [
        (SizeExpr, "H * 9223372036854775807", "KM117"),
        (SizeExpr, "H - 1000", "KM117"),
        (SizeExpr, "H // (K - 8)", "KM117"),
        (SizeExpr, "ceil_div(H, K - 8)", "KM117"),
        (SizeExpr, "q4_k_row_bytes(H + 1)", "KM117"),
        (SizeExpr, "X + 1", "KM115"),
        (ScalarExpr, "config.missing", "KM115"),
        (ScalarExpr, "option.missing", "KM115"),
        (ScalarExpr, "config.heads", "KM116"),
        (ScalarExpr, "config.heads[9]", "KM116"),
        (ScalarExpr, "config.n[0]", "KM116"),
        (ScalarExpr, "config.name + 1", "KM116"),
        (ScalarExpr, "shape(blk.9.w)[0]", "KM116"),
        (ScalarExpr, "shape(blk.1.w)[2]", "KM116"),
        (ScalarExpr, "config.n < config.name", "KM116"),
        (ScalarExpr, "config.huge * 1.0", "KM117"),
        (ScalarExpr, "align64(1.5)", "KM116"),
        (Predicate, "mode", "KM116"),
        (Predicate, "flag == 1", "KM116"),
    ],
)
def test_no_value(kind: Any, text: str, code: str) -> None:
    expression = kind.parse(text)
    with pytest.raises(ExpressionError) as caught:
        expression.evaluate({"H": 256, "K": 8} if kind is SizeExpr else ENV)
    assert caught.value.code == code


def test_there_is_no_layer_outside_layers() -> None:
    with pytest.raises(ExpressionError) as caught:
        Predicate.parse("layer == 0").evaluate(Env())
    assert caught.value.code == "KM116"


def test_what_an_expression_refers_to() -> None:
    found = Predicate.parse("K < config.n and option.kv == 'a' and has(blk.{layer}.x) or config.h[layer] == 1")
    assert found.names == {"K"} and found.config_names == {"n", "h"} and found.option_names == {"kv"}
    assert found.tensors == {"blk.{layer}.x"} and found.uses_layer
    assert not ScalarExpr.parse("config.n - 1").uses_layer


class Holder(BaseModel, strict=True):
    size: SizeExpr


def test_expressions_are_model_fields() -> None:
    assert Holder.model_validate_json('{"size": "2*H"}').size.evaluate({"H": 3}) == 6
    assert Holder.model_validate_json('{"size": "2*H"}').model_dump_json() == '{"size":"2 * H"}'
    assert Holder.model_json_schema()["properties"]["size"]["type"] == "string"
    with pytest.raises(ValidationError) as caught:
        Holder.model_validate_json('{"size": "2*"}')
    assert caught.value.errors()[0]["ctx"]["code"] == "KM111"


# Random trees against Python's own whole numbers

NAMES = {"A": 7, "B": 12, "C": 0}
TREES = st.recursive(
    st.integers(0, 50).map(str) | st.sampled_from(sorted(NAMES)),
    lambda inner: st.tuples(inner, st.sampled_from(["+", "-", "*", "//"]), inner).map(
        lambda t: f"({t[0]} {t[1]} {t[2]})"
    )
    | inner.map(lambda t: f"align64({t})")
    | st.tuples(st.sampled_from(["min", "max", "ceil_div"]), inner, inner).map(lambda t: f"{t[0]}({t[1]}, {t[2]})"),
    max_leaves=10,
)  # fmt: skip
PYTHON = {"align64": lambda x: -(-x // 64) * 64, "ceil_div": lambda a, b: -(-a // b), "min": min, "max": max}


@settings(max_examples=300)
@given(TREES)
def test_values_are_those_of_whole_numbers(text: str) -> None:
    expression = SizeExpr.parse(text)
    try:
        expected: int | None = eval(text, {"__builtins__": {}}, {**PYTHON, **NAMES})  # noqa: S307  (the reference)
    except ZeroDivisionError:
        expected = None
    if expected is None or expected < 0:
        with pytest.raises(ExpressionError):
            expression.evaluate(NAMES)
    else:
        try:
            assert expression.evaluate(NAMES) == expected
        except ExpressionError as error:
            assert "overflow" in error.message


@settings(max_examples=300)
@given(TREES)
def test_canonical_text_parses_to_itself(text: str) -> None:
    once = SizeExpr.parse(text)
    again = SizeExpr.parse(str(once))
    assert again == once and hash(again) == hash(once) and str(again) == str(once)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("a-b-c", "a - b - c"),
        ("a-(b-c)", "a - (b - c)"),
        ("(a*b)+c", "a * b + c"),
        ("a*(b+c)", "a * (b + c)"),
        ("(a<b) == (b<a)", "(a < b) == (b < a)"),
        ("not ((a<b) and flag)", "not (a < b and flag)"),
        ("(not (a<b)) or flag", "not a < b or flag"),
        ("flag == (not other)", "flag == (not other)"),
        ('mode == "it\'s"', 'mode == "it\'s"'),
        ("has('blk.{layer}.w')", "has(blk.{layer}.w)"),
    ],
)
def test_canonical_text_has_the_parentheses_that_it_needs(text: str, canonical: str) -> None:
    assert str(ScalarExpr.parse(text)) == canonical
    assert shape_of(ScalarExpr.parse(canonical).node) == shape_of(ScalarExpr.parse(text).node)


def test_canonical_text_is_short_enough_to_be_read_again() -> None:
    text = "+".join(["a" * 10] * 90)  # 989 characters, and 1167 with spaces
    with pytest.raises(ExpressionError) as caught:
        SizeExpr.parse(text)
    assert caught.value.code == "KM111" and "with spaces" in caught.value.message


def test_many_layers_may_be_listed() -> None:
    every = " or ".join(f"layer == {n}" for n in range(66))
    assert Predicate.parse(every).evaluate(Env(layer=65)) and not Predicate.parse(every).evaluate(Env(layer=66))


def shape_of(node: Any) -> Any:
    """A tree without its places."""
    if not isinstance(node, Node):
        return [shape_of(item) for item in node] if isinstance(node, tuple) else (type(node), node)
    own = {item.name: getattr(node, item.name) for item in fields(node) if item.name not in ("offset", "width")}
    return type(node).__name__, {name: shape_of(value) for name, value in own.items()}


def joined(parts: st.SearchStrategy[str], symbols: list[str]) -> st.SearchStrategy[str]:
    """Two parts around an operator, with parentheses or without: precedence decides."""
    return st.tuples(parts, st.sampled_from(symbols), parts, st.booleans()).map(
        lambda t: f"({t[0]} {t[1]} {t[2]})" if t[3] else f"{t[0]} {t[1]} {t[2]}"
    )


NUMBERS = st.recursive(
    st.sampled_from(["H", "7", "-3", "2.50", "1e-9", "layer", "config.n", "config.heads[layer]", "shape(blk.1.w)[1]"]),
    lambda inner: joined(inner, ["+", "-", "*", "//", "%"]),
    max_leaves=6,
)
TRUTHS = st.recursive(
    joined(NUMBERS, ["<", "<=", "==", "!="]) | st.sampled_from(["flag", "true", "has('blk.{layer}.x')", "mode == 'a'"]),
    lambda inner: (
        joined(inner, ["and", "or"]) | inner.map(lambda t: f"not ({t})") | inner.map(lambda t: f"({t}) != flag")
    ),
    max_leaves=6,
)  # fmt: skip


@settings(max_examples=300)
@given(TRUTHS | NUMBERS)
def test_canonical_text_keeps_every_tree(text: str) -> None:
    once = ScalarExpr.parse(text)
    again = ScalarExpr.parse(str(once))
    assert shape_of(again.node) == shape_of(once.node) and str(again) == str(once)
    assert answer(once) == answer(again)


def answer(expression: ScalarExpr) -> Any:
    try:
        return expression.evaluate(ENV)
    except ExpressionError as error:
        return error.code, error.message


@settings(max_examples=500)
@given(st.text(max_size=30) | st.text(alphabet="HKR0123456789+-*/%()<>=!,. 'andorconfiglayerhs[]", max_size=40))
def test_any_text_gives_a_tree_or_a_placed_error(text: str) -> None:
    for kind in (SizeExpr, ScalarExpr, Predicate):
        try:
            kind.parse(text)
        except ExpressionError as error:
            assert 0 <= error.offset <= len(text) and error.width >= 1 and error.code.startswith("KM11")


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_every_format_has_a_row_size(name: str) -> None:
    values = FORMATS[name].block_values
    assert SizeExpr.parse(f"{name}_row_bytes(R)").evaluate({"R": 3 * values}) == 3 * FORMATS[name].block_bytes
