"""Where the pipeline writes: one file a query, effects and progress in one transaction, repeats skipped by position."""
