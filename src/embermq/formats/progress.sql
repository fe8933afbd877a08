-- In every file that the pipeline writes: how far each reader of the message log has come. Every record below
-- next_offset has had its effect in this sink. The broker reads it before it trims the log.
CREATE TABLE IF NOT EXISTS progress (
    reader      TEXT PRIMARY KEY,
    next_offset INTEGER NOT NULL,
    updated_ms  INTEGER NOT NULL
) WITHOUT ROWID;
