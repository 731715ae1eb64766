"""kernelmap: decide, provably, which kernel runs each operation of a quantized language model on a CPU."""

__version__ = "0.1.0"
