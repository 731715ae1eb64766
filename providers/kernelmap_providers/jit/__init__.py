"""Compilation of jitted kernels with an on-disk cache that is keyed by everything the machine code depends on."""
