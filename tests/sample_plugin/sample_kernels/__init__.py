"""A third-party provider package: maps in ``kernel_maps``, circuits in ``circuits``, found without an import."""
