"""What a schedule and its legs find in memory: int64 words by byte offset.

A call's words lie at the start of its scratch, a leg's at the start of each worker's own part: legs are compiled once a
format and called by address, so that one machine code of a schedule serves every mix of formats.
"""

from __future__ import annotations

from typing import Final

TOKENS: Final = 0
SLOTS: Final = 8
EXPERTS: Final = 16
SIZE: Final = 24
WIDTH: Final = 32
"""Sizes R, K, E, H and I of the contract (a shared expert has one slot and one expert)."""
HIDDEN: Final = 40
INDICES: Final = 48
ROUTING: Final = 56
ROUTED: Final = 64
GATE_INPUT: Final = 72
OUTPUT: Final = 80
"""Addresses of ports; 0 where the contract has none."""
GATE: Final = 88
UP: Final = 112
DOWN: Final = 136
"""Three words each: address (0: no such leg), bytes from expert to expert, bytes from row (or row group) to row."""
GATE_BIAS: Final = 160
UP_BIAS: Final = 168
DOWN_BIAS: Final = 176
"""Addresses of fp32 biases ``[E, rows]``; 0 for none."""
QUANTIZE_HIDDEN: Final = 184
QUANTIZE_INNER: Final = 192
GATE_DOTS: Final = 200
UP_DOTS: Final = 208
DOWN_DOTS: Final = 216
ACTIVATE: Final = 224
"""Addresses of legs."""
OUTER_BLOCKS: Final = 232
OUTER_STRIDE: Final = 240
INNER_BLOCKS: Final = 248
INNER_STRIDE: Final = 256
"""Activation blocks a row, and bytes a row, of the hidden rows and of the intermediate."""
COMMON: Final = 264
WORKERS: Final = 272
WORKER_BYTES: Final = 280
"""Addresses of the scratch that all threads share and of the workers' parts, and the size of one part."""
BAD_ROW: Final = 288
QUANTIZED: Final = 296
"""Results: the least refused token, and how many hidden rows were quantized."""
REQUANTIZE: Final = 304
"""1 to quantize the hidden row anew for every slot."""
MERGE: Final = 312
PARAMETERS: Final = 320
"""Up to four fp32 parameters of the activation function."""
SEGMENTS: Final = 336
"""The number of segments of the bucketed schedule."""
PACK_BYTES: Final = 352
"""Room at the end of each worker's part for rows that a leg packs as it goes; 0 for none."""
NEXT_GATE_UP: Final = 384
NEXT_DOWN: Final = 448
"""The bucketed schedule's next items, each counter in a cache line of its own."""
CALL_BYTES: Final = 512

NO_ROW: Final = 2**63 - 1
WEIGHTED, PLAIN, GATED = 0, 1, 2
"""How a down row joins the output: ``out + weight * y``; ``y``; ``gate * y + routed``."""

LEG_X: Final = 0
LEG_X_STRIDE: Final = 8
LEG_BLOCKS: Final = 16
LEG_OUT: Final = 24
LEG_OUT_STRIDE: Final = 32
"""Quantizing: rows in, blocks out. Also the output of dots."""
LEG_WEIGHTS: Final = 40
LEG_WEIGHT_STRIDE: Final = 48
LEG_FIRST: Final = 56
LEG_ROWS: Final = 64
LEG_ACTS: Final = 72
LEG_ACT_INDEX: Final = 80
LEG_ACT_STRIDE: Final = 88
LEG_OUT_INDEX: Final = 96
LEG_TOKENS: Final = 104
"""Dots: rows ``first`` to ``first + rows - 1`` of a matrix with the activation rows that the int32 index names."""
LEG_GATE: Final = 112
LEG_UP: Final = 120
LEG_GATE_BIAS: Final = 128
LEG_UP_BIAS: Final = 136
LEG_PARAMETERS: Final = 144
"""Activation: ``out[i]`` from ``gate[i]`` and ``up[i]``."""
FACTOR: Final = 152
"""The scalar gate of the token at hand (fp32)."""
TAIL: Final = 160
"""Room for eight fp32 values: the last ones of a row whose length is no multiple of eight."""
LEG_PACKED: Final = 192
"""Address of the room for packed rows; 0 for none."""
LEG_BYTES: Final = 256
