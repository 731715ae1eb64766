"""Maps of other engines, read as providers that are shown and compared and cannot be run."""
