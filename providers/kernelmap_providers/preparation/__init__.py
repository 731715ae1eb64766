"""Weight preparation: hooks that pack tensors once at bind, in memory or in a cache on disk."""
