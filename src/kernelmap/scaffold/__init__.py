"""Scaffolding: maps, providers, contracts and circuits that pass ``check`` from the start."""

from kernelmap.scaffold.circuit import new_circuit
from kernelmap.scaffold.contract import new_contract
from kernelmap.scaffold.provider import Scaffold, new_provider

__all__ = ["Scaffold", "new_circuit", "new_contract", "new_provider"]
