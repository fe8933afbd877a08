"""The embedded stores: SQLite in WAL mode, files in one data directory.

`broker.db` is written by the broker alone, one transaction a tick; the pipeline's files are opened read-only.
SQL lives in the .sql files; statements of one line stand beside the code that binds them.
"""
