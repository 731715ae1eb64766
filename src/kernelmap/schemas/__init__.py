"""Generated JSON Schema files (2020-12)."""
