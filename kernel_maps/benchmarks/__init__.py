"""Bench records that allowed promotions: ``<provider>.json``, written by ``kernelmap promote``."""
