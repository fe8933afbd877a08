-- applications.db: written by the pipeline's dispatch query alone, read by the broker.
-- One row a record that an application log wants. Bodies stay in the message log.
CREATE TABLE IF NOT EXISTS application_log (
    generation  INTEGER NOT NULL,
    "offset"    INTEGER NOT NULL,
    flags       INTEGER NOT NULL,  -- bits 0-1 granted QoS, bit 2 retain as published
    identifiers BLOB    NOT NULL,  -- u32 big-endian subscription identifiers
    PRIMARY KEY (generation, "offset")
) WITHOUT ROWID;

-- Names of the logs, for people: the client id of each generation.
CREATE TABLE IF NOT EXISTS application_name (
    generation INTEGER PRIMARY KEY,
    log        TEXT NOT NULL
);

-- Records that cannot be understood (pipeline-4).
CREATE TABLE IF NOT EXISTS rejected (
    "offset"    INTEGER PRIMARY KEY,
    reason      TEXT    NOT NULL,
    body        BLOB    NOT NULL,
    rejected_ms INTEGER NOT NULL
);
