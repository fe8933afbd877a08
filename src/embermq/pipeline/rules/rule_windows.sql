-- The last window of each rule that was reckoned: its end (Unix seconds), where the log ended then (JSON, by partition),
-- and what it makes.
CREATE TABLE IF NOT EXISTS rule_windows (
    rule   TEXT    PRIMARY KEY,
    log_id INTEGER NOT NULL,
    end_s  INTEGER NOT NULL,
    seen   BLOB    NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS rule_window_rows (
    rule    TEXT    NOT NULL,
    number  INTEGER NOT NULL,
    topic   TEXT    NOT NULL,
    payload BLOB    NOT NULL,
    PRIMARY KEY (rule, number)
) WITHOUT ROWID;
-- Of rows that are kept with their columns (to = "sql" and "lake"): these (MessagePack: name, type, value each), and the
-- SHA-256 of the SQL that names them, and of names and types.
CREATE TABLE IF NOT EXISTS rule_window_columns (
    rule    TEXT    NOT NULL,
    number  INTEGER NOT NULL,
    asked   TEXT    NOT NULL,
    columns BLOB    NOT NULL,
    PRIMARY KEY (rule, number)
) WITHOUT ROWID;
