"""GEMM and GEMV providers: packed x8, weights as stored, floats."""
