"""Bisection: the choices of two locks in lockstep over the same inputs, up to the first call that departs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from kernelmap.bind import BoundOp
from kernelmap.circuit.instances import Elaborated
from kernelmap.errors import Diagnostic, KernelmapError
from kernelmap.models.plan import Decision, Plan
from kernelmap.models.tracing import Bisection, BisectStep, Divergence
from kernelmap.resolver import cases_of, layer_ranges
from kernelmap.tracing.beside import Beside, Outcome
from kernelmap.tracing.choosing import Choice
from kernelmap.vocabulary import Phase


class Found(Exception):  # noqa: N818  # no error: the way out of a session at the first departing call
    """The first departing call."""

    def __init__(self, divergence: Divergence) -> None:
        self.divergence = divergence
        super().__init__(divergence.where)


def differing(good: Plan, bad: Plan, elaborated: Elaborated) -> tuple[Choice, ...]:
    """The bad plan's decisions that choose another provider, or other variants of it, than the good plan's.

    Raises KernelmapError (KM578) if the plans take other options of the circuit: then other ops would run.
    """
    if good.options != bad.options:
        told = [", ".join(f"{name}={value}" for name, value in plan.options.items()) for plan in (good, bad)]
        message = "the two locks take other options of the circuit: their ops cannot be compared"
        raise KernelmapError(Diagnostic("KM578", message, expected=told[0], found=told[1]))
    pairs = zip(cases_of(elaborated), good.decisions, bad.decisions, strict=True)
    return tuple((case, two) for case, one, two in pairs if _code(one) != _code(two))


def _code(decision: Decision) -> tuple[str | None, tuple[str, ...]]:
    return decision.provider, tuple(variant.name for variant in decision.variants if variant.enabled)


class Bisector:
    """A probe of a session that runs the good plan: each differing op of the bad plan runs on the good one's inputs.

    So every op is judged by itself, by its contract: what a tolerance allows upstream is no fault further down.
    Raises `Found` out of the session at the first departing call.
    """

    def __init__(
        self, good: Plan, bad: Plan, chosen: Sequence[Choice], others: dict[tuple[str, Phase], tuple[BoundOp, ...]]
    ) -> None:
        self.good, self.bad, self.chosen = good, bad, tuple(chosen)
        self.probe = Beside(others, self._tell)
        self.found: Divergence | None = None
        self._calls: Counter[int] = Counter()

    def _tell(self, outcome: Outcome) -> None:
        self._calls[id(outcome.op.decision)] += 1
        if outcome.divergence is not None:
            self.found = outcome.divergence
            raise Found(outcome.divergence)

    def result(self) -> Bisection:
        """What was compared, and the first departing call."""
        chosen = {(d.name, d.phase, d.layers): str(d.provider) for d in self.good.decisions}
        steps = [
            BisectStep(
                op=d.name,
                phase=d.phase,
                layers=layer_ranges(d.layers),
                good=chosen[d.name, d.phase, d.layers],
                bad=str(d.provider),
                calls=self._calls[id(d)],
            )
            for _, d in self.chosen
        ]
        return Bisection(
            circuit=self.good.circuit,
            good=self.good.digest,
            bad=self.bad.digest,
            compared=tuple(steps),
            same=len(self.good.decisions) - len(steps),
            found=self.found,
        )
