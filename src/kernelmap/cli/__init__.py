"""The command line: each command a thin rendering of the library's records."""
