"""Contract files, one equivalence group or family a file."""
