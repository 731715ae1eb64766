"""Shadow runs: candidates beside production on real activations, up to a budget of departing calls."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kernelmap.bind import BoundOp, BoundPlan
from kernelmap.errors import Diagnostic, KernelmapError
from kernelmap.files import write_whole
from kernelmap.models.tracing import Divergence, OnDivergence, ShadowEvidence, ShadowSubject
from kernelmap.registry import Registry
from kernelmap.resolver import layer_ranges
from kernelmap.source_digests import map_source_digest
from kernelmap.tracing.beside import Beside, Outcome, number
from kernelmap.tracing.choosing import Choice
from kernelmap.vocabulary import Phase

MOST_DIVERGENCES = 1000
"""Departing calls that evidence tells in full; further ones only count."""


class Shadow:
    """What came of the shadows of a session; `probe` goes into the session.

    ``budget`` is the number of departing calls that are allowed. One more ends the run with KM570 if ``on_divergence``
    is ``stop``; if it is ``record``, the run goes on, and `within_budget` says so afterwards.
    """

    def __init__(self, bound: BoundPlan, chosen: Sequence[Choice], others: dict[tuple[str, Phase], tuple[BoundOp, ...]],
                 *, budget: int = 0, on_divergence: OnDivergence = "record") -> None:  # fmt: skip
        self.bound, self.chosen, self.budget = bound, tuple(chosen), budget
        self.on_divergence: OnDivergence = on_divergence
        self.probe = Beside(others, self._tell)
        self.divergences: list[Divergence] = []
        self.departed = 0
        self._counts: dict[tuple[int, str], tuple[int, int, float]] = {}
        """(decision, candidate) to calls, departing calls and the largest difference."""

    @property
    def within_budget(self) -> bool:
        """Whether no more calls departed than are allowed."""
        return self.departed <= self.budget

    @property
    def calls(self) -> int:
        """Calls that were compared."""
        return sum(calls for calls, _, _ in self._counts.values())

    def _tell(self, outcome: Outcome) -> None:
        key = (id(outcome.op.decision), outcome.op.map.id)
        calls, departed, worst = self._counts.get(key, (0, 0, 0.0))
        wrong = outcome.divergence is not None
        self._counts[key] = (calls + 1, departed + wrong, max(worst, outcome.worst))
        if outcome.divergence is None:
            return
        self.departed += 1
        if len(self.divergences) < MOST_DIVERGENCES:
            self.divergences.append(outcome.divergence)
        if self.on_divergence == "stop" and not self.within_budget:
            raise KernelmapError(departure(outcome.divergence, f"{self.departed} over a budget of {self.budget}"))

    def uncalled(self) -> list[Diagnostic]:
        """One problem for each candidate that was compared in no call of an op at all."""
        ran: dict[tuple[str, str], bool] = {}
        for _, decision in self.chosen:
            key = (decision.name, str(decision.provider))
            ran[key] = ran.get(key, False) or (id(decision), key[1]) in self._counts
        never = [words for words, once in ran.items() if not once]
        return [Diagnostic("KM577", f"shadow {op}={name}: no call of {op} was compared") for op, name in never]

    def evidence(self, registry: Registry, host: str, threads: int, *, complete: bool) -> ShadowEvidence:
        """All that was compared so far, as a record."""
        plan = self.bound.plan
        production = {(d.name, d.phase, d.layers): str(d.provider) for d in plan.decisions}
        subjects = []
        for _, decision in self.chosen:
            item = registry.maps[str(decision.provider)]
            calls, departed, worst = self._counts.get((id(decision), item.id), (0, 0, 0.0))
            subjects.append(ShadowSubject(
                op=decision.name, phase=decision.phase, layers=layer_ranges(decision.layers), group=decision.group,
                contract=decision.contract_digest,
                production=production[decision.name, decision.phase, decision.layers],
                candidate=item.id, candidate_map=item.digest, candidate_sources=map_source_digest(item),
                calls=calls, departed=departed, max_error=number(worst),
            ))  # fmt: skip
        return ShadowEvidence(
            circuit=plan.circuit, plan=plan.digest, inventory=plan.inventory_digest, host=host, threads=threads,
            budget=self.budget, on_divergence=self.on_divergence, complete=complete, within_budget=self.within_budget,
            departed=self.departed, subjects=tuple(subjects), divergences=tuple(self.divergences),
        )  # fmt: skip


def departure(found: Divergence, why: str = "") -> Diagnostic:
    """A departing call as a problem."""
    expected, got = f"{found.expected.provider}", f"{found.found.provider}"
    if found.differences:
        first = found.differences[0]
        at = ", ".join(map(str, first.index))
        expected += f": {first.port}[{at}] = {first.expected}"
        got += f": {first.port}[{at}] = {first.found}; {first.count} of {first.size} differ, by up to {first.max_error}"
    else:
        got += ": " + "; ".join(found.faults)
    message = f"{found.where}: {found.found.provider} departs from {found.expected.provider}"
    return Diagnostic("KM570", f"{message}{f' ({why})' if why else ''}", expected=expected, found=got)


def write_evidence(evidence: ShadowEvidence, path: Path) -> None:
    """Writes evidence whole or not at all. Raises KernelmapError (KM832) if it cannot be written."""
    write_whole(evidence.model_copy(update={"schema_ref": "urn:kernelmap:schema:shadow:1"}).model_dump_json(
        indent=2, by_alias=True) + "\n", path)  # fmt: skip
