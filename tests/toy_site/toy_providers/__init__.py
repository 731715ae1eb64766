"""Numpy providers of the toy circuit: each states one op in a line or two."""
