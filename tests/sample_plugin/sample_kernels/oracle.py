"""What the providers must compute, written to be read."""

from __future__ import annotations

import numpy as np


def row_scale(spec, *, x, weight):
    """(x * weight) * scale in fp32, each product rounded by itself."""
    return {"y": (x * weight) * np.float32(spec.params["scale"])}
