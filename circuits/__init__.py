"""Circuit files, one model family a file."""
