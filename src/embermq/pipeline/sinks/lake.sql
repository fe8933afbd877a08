-- lake.db follows the lake, which itself says how far it is: retention, status and backup need not read it.
CREATE TABLE IF NOT EXISTS lake_version (
    id      INTEGER PRIMARY KEY CHECK (id = 1),
    version INTEGER NOT NULL, -- the table's newest commit that was synced, of which the position is
    boot    TEXT    NOT NULL  -- of the machine, then; empty after a restore: a lake in another place went on
);

CREATE TABLE IF NOT EXISTS lake_run (
    id  INTEGER PRIMARY KEY CHECK (id = 1),
    run TEXT    NOT NULL -- that of the last driver here: its commits name it, and those of other brokers do not
);
