"""Which forms of each weight stay in memory under a plan, and their bytes."""

from __future__ import annotations

from collections.abc import Sequence

from kernelmap.circuit.instances import Elaborated
from kernelmap.models.plan import Decision, ResidentWeight

_Key = tuple[str, tuple[int, int] | None, str]


def residency(elaborated: Elaborated, decisions: Sequence[Decision]) -> tuple[tuple[ResidentWeight, ...], int]:
    """(forms by tensor pattern, total bytes). A raw tensor counts once if any op reads it raw; a prepared one once for
    each (tensor, prepared format), however many ops and phases share it."""
    prepared_as = _prepared_formats(decisions)
    seen: set[_Key] = set()
    rows: dict[tuple[str, str], list[int]] = {}
    for instance in elaborated.instances:
        for port, weight in instance.weights.items():
            forms = prepared_as.get((instance.shared.where, instance.layer, port), ())
            for form, size in forms:
                raw = form == weight.tensor.format
                key: _Key = (weight.tensor.name, None if raw else weight.rows, form)
                if key in seen:
                    continue
                seen.add(key)
                entry = rows.setdefault((weight.pattern, form), [0, 0])
                entry[0] += 1
                entry[1] += weight.tensor.nbytes if raw else size
    resident = tuple(
        ResidentWeight(tensor=tensor, form=form, count=count, bytes=size)
        for (tensor, form), (count, size) in sorted(rows.items())
    )
    return resident, sum(item.bytes for item in resident)


def _prepared_formats(
    decisions: Sequence[Decision],
) -> dict[tuple[str, int | None, str], tuple[tuple[str, int], ...]]:
    forms: dict[tuple[str, int | None, str], tuple[tuple[str, int], ...]] = {}
    for decision in decisions:
        for layer in decision.layers or (None,):
            for use in decision.weights:
                key = (decision.where, layer, use.port)
                form = (use.prepared_format or use.format, use.prepared_bytes)
                forms[key] = (*forms.get(key, ()), form)
    return forms
