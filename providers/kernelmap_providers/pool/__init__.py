"""The worker pool: one set of parked native threads for every parallel kernel."""
