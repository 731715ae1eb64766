"""The SIMD layer: vector types, vector operations and micro-kernel generators; the only place that emits LLVM IR.

``target`` chooses an instruction form from the host's features, ``emit`` writes the IR of one operation in that form,
``ops`` offers the same operations inside jitted Python, ``tile`` and ``rows`` generate whole micro-kernels. Every form
computes the same bytes.
"""
