"""Inventories of model files: GGUF, safetensors and JSON profiles."""

from kernelmap.inventory.profile import profile_text
from kernelmap.inventory.reading import read_inventory
from kernelmap.inventory.tensors import open_tensor

__all__ = ["open_tensor", "profile_text", "read_inventory"]
