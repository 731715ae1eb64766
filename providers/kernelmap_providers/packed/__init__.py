"""Packed x8 weight layouts: eight weight rows side by side, so that vector lanes are weight rows."""
