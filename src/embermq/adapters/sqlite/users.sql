-- users.db: the accounts. A file of its own, because the command line writes it while the broker reads it.
-- `scram` has a line for each of its methods, with what a proof is checked by. `version` tells whether what a client
-- entered with still holds; `changes` has the names whose accounts were added, changed or removed, the newest last.
CREATE TABLE users (
    name TEXT PRIMARY KEY,
    password_hash TEXT NOT NULL,
    client_type INTEGER NOT NULL,
    disabled INTEGER NOT NULL,
    created_ms INTEGER NOT NULL,
    version INTEGER NOT NULL DEFAULT 1,
    scram TEXT NOT NULL DEFAULT ''
) STRICT, WITHOUT ROWID;

CREATE TABLE changes (seq INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL) STRICT;

CREATE TRIGGER users_added AFTER INSERT ON users BEGIN
    INSERT INTO changes (name) VALUES (new.name);
END;

CREATE TRIGGER users_changed AFTER UPDATE OF version ON users BEGIN
    INSERT INTO changes (name) VALUES (new.name);
END;

CREATE TRIGGER users_removed AFTER DELETE ON users BEGIN
    INSERT INTO changes (name) VALUES (old.name);
END;

CREATE TRIGGER changes_bounded AFTER INSERT ON changes BEGIN
    DELETE FROM changes WHERE seq <= new.seq - 10000;
END;

-- Each is made when it is first asked for.
CREATE TABLE secrets (name TEXT PRIMARY KEY, value BLOB NOT NULL) STRICT, WITHOUT ROWID;
