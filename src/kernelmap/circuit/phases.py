"""Which phases make a value: an op reads nothing that its own phases do not make."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from kernelmap.circuit.instances import Value
from kernelmap.models.circuit import ALL_STEPS
from kernelmap.vocabulary import Phase


@dataclass(slots=True)
class Makers:
    """Value keys to the phases that make them. What no op makes is the caller's, given in prefill and decode."""

    phases: dict[str, tuple[Phase, ...]] = field(default_factory=dict)

    def made(self, outputs: Mapping[str, Value], phases: tuple[Phase, ...]) -> None:
        """Notes the outputs of an op that runs in ``phases``."""
        self.phases.update((value.key, phases) for value in outputs.values())

    def gaps(
        self, inputs: Mapping[str, Value], phases: tuple[Phase, ...], lists: Mapping[str, tuple[str, ...]]
    ) -> Iterator[tuple[str, str, str]]:
        """(port, value key, phases) of each input that is not there in some of ``phases``.

        What phase init makes is kept for every later one. Without this check a session would look for a value that
        only the other phase made.
        """
        for port, value in inputs.items():
            for key in lists.get(value.key, (value.key,)):
                made = self.phases.get(key, ALL_STEPS)
                gap = [] if Phase.INIT in made else [phase.value for phase in phases if phase not in made]
                if gap:
                    yield port, key, " and ".join(gap)
