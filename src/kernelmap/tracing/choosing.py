"""Which calls a word on the command line means: shadows (``OP[:PHASE]=ID``) and captures (``OP[@LAYER][:PHASE]``)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from kernelmap.budget import Served, budget_reason
from kernelmap.checks import CHECKS, Question, check_status
from kernelmap.circuit.instances import Elaborated
from kernelmap.errors import Diagnostic, KernelmapError, nearest
from kernelmap.models.host import Host
from kernelmap.models.kernel_map import KernelMap
from kernelmap.models.plan import Decision, Plan, Reason
from kernelmap.policies import op_words
from kernelmap.registry import Registry
from kernelmap.resolver import Case, cases_of, layer_ranges, redecided, rules_of
from kernelmap.vocabulary import Phase

Choice = tuple[Case, Decision]
Wanted = tuple[str, int | None, Phase]
"""An op, its layer (None outside of all) and a phase."""
_CAPTURE = re.compile(r"([a-z][a-z0-9_]*)(?:@([0-9]{1,6}))?(?::(init|prefill|decode))?")


def shadow_choices(
    words: Sequence[str], plan: Plan, elaborated: Elaborated, registry: Registry, host: Host
) -> tuple[Choice, ...]:
    """What each ``OP[:PHASE]=ID`` would run beside production, as decisions.

    A shadow passes every check that a selected provider passes, but those of status and rank: what the policy denies
    is refused here with the very rule of the resolver. Without a phase, those count that the candidate's map lists.
    Raises KernelmapError with the problems of all words.
    """
    problems: list[Diagnostic] = []
    found: dict[tuple[str, Phase, int, str], Choice] = {}
    served: dict[str, list[Case]] = {}
    pairs = tuple(zip(cases_of(elaborated), plan.decisions, strict=True))
    for op, phase, name in op_words(words, "--shadow", problems):
        item = registry.maps.get(name)
        mine = [pair for pair in pairs if pair[1].name == op]
        if wrong := _unknown(op, name, item, mine, pairs, registry):
            problems.append(wrong)
            continue
        assert item is not None
        phases = (phase,) if phase is not None else item.selection.phases
        mine = [pair for pair in mine if pair[1].phase in phases]
        if not mine:
            ran = ", ".join(dict.fromkeys(d.phase.value for _, d in pairs if d.name == op))
            message = f"--shadow {op}={name}: nothing to run beside in {', '.join(p.value for p in phases)}"
            problems.append(Diagnostic("KM571", message, help=f"{op} runs in {ran}"))
        for case, decision in mine:
            if refused := _refusals(item, case, decision, plan, elaborated, registry, host):
                problems += refused
                continue
            served.setdefault(name, []).append(case)
            choice = redecided(decision, case, item, host, plan.policy.kill_switches)
            found[op, decision.phase, id(case.shared), name] = (case, choice)
    for name, cases in served.items():
        unique = {id(case.shared): Served(case.shared, case.instances) for case in cases}
        if reason := budget_reason(registry.maps[name], tuple(unique.values())):
            problems.append(Diagnostic(reason.code, f"shadow {name}: {reason.message}"))
    if problems:
        raise KernelmapError(dict.fromkeys(problems))
    return tuple(found.values())


def _unknown(
    op: str, name: str, item: KernelMap | None, mine: Sequence[Choice], pairs: Sequence[Choice], registry: Registry
) -> Diagnostic | None:
    """What is wrong with the names alone."""
    ops = {decision.name for _, decision in pairs}
    if op not in ops:
        return Diagnostic("KM458", f"--shadow: the circuit has no op {op!r}", near=nearest(op, ops))
    if item is None:
        return Diagnostic("KM457", f"--shadow: no provider is called {name!r}", near=nearest(name, registry.maps))
    groups = dict.fromkeys(decision.group for _, decision in mine)
    if item.selection.equivalence_group not in groups:
        message = f"--shadow {op}={name}: the provider is of {item.selection.equivalence_group}"
        return Diagnostic("KM459", message, expected=" or ".join(groups), found=item.selection.equivalence_group)
    return None


def _refusals(
    item: KernelMap, case: Case, decision: Decision, plan: Plan, elaborated: Elaborated, registry: Registry, host: Host
) -> list[Diagnostic]:
    label = f"--shadow {decision.name}={item.id} ({decision.phase.value})"
    group = item.selection.equivalence_group
    if decision.group != group:
        layers = f" layers {layer_ranges(decision.layers)}" if decision.layers else ""
        message = f"{label}:{layers} asks for another group"
        return [Diagnostic("KM459", message, expected=decision.group, found=group)]
    rules = rules_of(elaborated.circuit, plan.policy)
    question = Question(case.shared, case.phase, host, frozenset(host.isa), rules, registry.evidence)
    reasons: list[Reason] = [
        reason for check in CHECKS if check is not check_status and (reason := check(item, question)) is not None
    ]
    return [Diagnostic(reason.code, f"{label}: {reason.message}") for reason in reasons]


def capture_calls(words: Iterable[str], elaborated: Elaborated) -> frozenset[Wanted]:
    """What each ``OP[@LAYER][:PHASE]`` means: all phases of the op without a phase; no layer only outside of layers.

    Raises KernelmapError with the problems of all words.
    """
    known: dict[str, dict[int | None, tuple[Phase, ...]]] = {}
    for instance in elaborated.instances:
        known.setdefault(instance.shared.op.name, {})[instance.layer] = instance.shared.op.phases
    problems: list[Diagnostic] = []
    found: set[Wanted] = set()
    for word in words:
        match = _CAPTURE.fullmatch(word)
        if match is None:
            expected = "OP[@LAYER][:PHASE], with phase init, prefill or decode"
            problems.append(Diagnostic("KM751", f"--capture {word!r} is malformed", expected=expected))
            continue
        op, layer, phase = match[1], int(match[2]) if match[2] else None, Phase(match[3]) if match[3] else None
        layers = known.get(op, {})
        phases = layers.get(layer, ())
        if phase is not None:
            phases = tuple(item for item in phases if item is phase)
        if phases:
            found |= {(op, layer, item) for item in phases}
        else:
            problems.append(_no_such_call(word, op, layer, layers, known))
    if problems:
        raise KernelmapError(problems)
    return frozenset(found)


def _no_such_call(
    word: str, op: str, layer: int | None, layers: dict[int | None, tuple[Phase, ...]], known: Iterable[str]
) -> Diagnostic:
    if not layers:
        return Diagnostic("KM458", f"--capture {word}: the circuit has no op {op!r}", near=nearest(op, known))
    if layer in layers:
        runs = ", ".join(phase.value for phase in layers[layer])
        return Diagnostic("KM458", f"--capture {word}: {op} does not run in that phase", help=f"it runs in {runs}")
    ranges = layer_ranges([item for item in layers if item is not None])
    where = f"it is in layers {ranges}: write {op}@LAYER" if ranges else f"it is in no layer: write {op}"
    return Diagnostic("KM458", f"--capture {word}: no such layer of {op}", help=where)
