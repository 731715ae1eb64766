"""Benchmarks: the eligible providers of a group side by side, called through bind and session."""
