"""The queries: each module joins one source, one transform and one sink."""
