-- In every file that the pipeline writes: totals of what a reader has met, in the transaction of the effect.
-- what: records, entries, rejected, missing, late, files
CREATE TABLE IF NOT EXISTS counted (
    reader TEXT    NOT NULL,
    what   TEXT    NOT NULL,
    total  INTEGER NOT NULL,
    PRIMARY KEY (reader, what)
) WITHOUT ROWID;
