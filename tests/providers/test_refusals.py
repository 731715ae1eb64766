"""A refusal behind a barrier: every thread gets the same answer, however far ahead a faster one is."""

from __future__ import annotations

import ast
import inspect
from typing import Any

from kernelmap_providers.experts import bucketed, by_token


def calls_in(function: ast.FunctionDef) -> list[str]:
    """Names of called functions, in the order of the source."""
    found = [node for node in ast.walk(function) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    return [
        node.func.id
        for node in sorted(found, key=lambda n: (n.lineno, n.col_offset))
        if isinstance(node.func, ast.Name)
    ]


def functions_of(module: Any) -> dict[str, ast.FunctionDef]:
    tree = ast.parse(inspect.getsource(module))
    return {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_nothing_is_refused_behind_the_question() -> None:
    """`steps.refused` knows no stage, so nothing may refuse, and nobody wait, behind it: a slow thread that asks late
    would see a faster one's later refusal and leave, and the fast one would wait for it at the next barrier for ever.
    """
    assert "refused" not in {name for f in functions_of(by_token).values() for name in calls_in(f)}
    assert "barrier" not in {name for f in functions_of(by_token).values() for name in calls_in(f)}
    callees = functions_of(bucketed)
    order = calls_in(callees["bucketed_task"])
    behind = order[order.index("refused") + 1 :]
    assert order[: order.index("refused")][-1] == "barrier"
    assert "barrier" not in behind
    assert not any({"refuse", "barrier"} & set(calls_in(callees[name])) for name in behind if name in callees)
