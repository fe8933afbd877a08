-- parked.db: bodies that applications still need after the message log has let go of them. Written by the broker.
CREATE TABLE IF NOT EXISTS parked_record (
    generation INTEGER NOT NULL,
    "offset"   INTEGER NOT NULL,
    record     BLOB    NOT NULL,
    PRIMARY KEY (generation, "offset")
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS parked_log (
    generation  INTEGER PRIMARY KEY,
    next_offset INTEGER NOT NULL,
    body_bytes  INTEGER NOT NULL
);
