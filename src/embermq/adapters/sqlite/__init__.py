"""The embedded stores: SQLite in WAL mode, files in one data directory.

The broker alone writes `broker.db`, as the checkpoint of its segment files: several ticks a transaction. The pipeline's
files are opened read-only.
SQL lives in the .sql files; statements of one line stand beside the code that binds them.
"""
