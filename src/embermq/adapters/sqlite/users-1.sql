-- Version 1: what ends connections. `version` tells whether what a client entered with still holds; `changes` has the
-- names whose accounts were added, changed or removed, the newest last.
ALTER TABLE users ADD COLUMN version INTEGER NOT NULL DEFAULT 1;

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
