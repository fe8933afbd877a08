-- Version 2: SCRAM. `scram` has a line for each of its methods, with what a proof is checked by; a secret is made when it
-- is first asked for.
ALTER TABLE users ADD COLUMN scram TEXT NOT NULL DEFAULT '';

CREATE TABLE secrets (name TEXT PRIMARY KEY, value BLOB NOT NULL) STRICT, WITHOUT ROWID;
