"""Frozen, strict pydantic models of every file and record; the only source of the JSON Schemas."""
