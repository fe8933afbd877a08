-- lake.db: the ledger of the lake. A batch is in the lake from the moment its files are listed here; the rename
-- into place follows and is repeated after a crash.
CREATE TABLE IF NOT EXISTS lake_pending (
    staged    TEXT PRIMARY KEY,  -- below lake/_staging/
    published TEXT NOT NULL      -- below lake/
) WITHOUT ROWID;
