"""Where the pipeline reads: the message log and the delivery receipts in broker.db, as Python data sources.

Rules: SQLite is opened read-only with short transactions; a missing file means *no data yet*; what cannot be
decoded becomes a row that says so.
"""
