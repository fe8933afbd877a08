-- Tables of rules with to = "lake": the newest commit that was synced, the boot of the machine then ('' after a restore),
-- and the run of the driver, which its commits name.
CREATE TABLE IF NOT EXISTS rule_tables (
    rule    TEXT    PRIMARY KEY,
    version INTEGER NOT NULL,
    boot    TEXT    NOT NULL,
    run     TEXT    NOT NULL
) WITHOUT ROWID;
