-- migration.db: how far `embermq pipeline migrate` is, and what it could not take. One run is a source and a target.
CREATE TABLE IF NOT EXISTS run (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    source      TEXT    NOT NULL,
    target      TEXT    NOT NULL,
    terms       TEXT    NOT NULL,
    started_ms  INTEGER NOT NULL,
    finished_ms INTEGER NOT NULL DEFAULT 0
);

-- A range of client ids; NULL for rows without one. `counts` is JSON, there once the piece is done.
CREATE TABLE IF NOT EXISTS piece (
    run      INTEGER NOT NULL,
    number   INTEGER NOT NULL,
    first    TEXT,
    last     TEXT,
    clients  INTEGER NOT NULL,
    messages INTEGER NOT NULL,
    counts   TEXT,
    PRIMARY KEY (run, number)
) WITHOUT ROWID;

-- Generations that sessions of this source may have: from `first` up to, not including, `end`.
CREATE TABLE IF NOT EXISTS reserved (
    first INTEGER PRIMARY KEY,
    "end" INTEGER NOT NULL
);

-- Rows that were not taken by the newest run, and why.
CREATE TABLE IF NOT EXISTS rejected (
    piece         INTEGER NOT NULL,
    client_id     TEXT,
    serial_number INTEGER,
    packet_id     INTEGER,
    topic         TEXT,
    reason        TEXT NOT NULL,
    detail        TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS rejected_piece ON rejected (piece);
