"""Sessions and stored messages of a TBMQ 1.x into EmberMQ's session store, by one Spark job.

What lives here: the command (`cli`), the order and the locks around the job (`migration`), the job (`job`), its source
(`old_tables`, `old_tables_source`), what is taken and what is rejected (`judging`), what is written
(`migrated_clients`) and where to (`session_target`, `redis_sessions`, `sqlite_sessions`), and how far it is
(`migration_file`).

Rules:
1. Layouts, the settings, the lock of a data directory and the Spark session are the broker's own, imported from
   `embermq`; nothing in `embermq` imports this package.
2. The tables of 1.x are only read.
3. A run that ended anyhow is taken up by the next one; nothing is written twice.
"""
