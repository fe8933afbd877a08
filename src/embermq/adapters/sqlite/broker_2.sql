-- From schema version 1 to 2: who a session and a will belong to, as rules ask for it.
BEGIN IMMEDIATE;
ALTER TABLE session ADD COLUMN certificate TEXT NOT NULL DEFAULT '';
ALTER TABLE will ADD COLUMN username TEXT NOT NULL DEFAULT '';
ALTER TABLE will ADD COLUMN certificate TEXT NOT NULL DEFAULT '';
UPDATE will SET username = session.username FROM session WHERE session.generation = will.generation;
UPDATE meta SET value = 2 WHERE name = 'schema_version';
COMMIT;
