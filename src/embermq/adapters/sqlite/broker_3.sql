-- From schema version 2 to 3: how far sessions are that have not consumed everything below the floor.
BEGIN IMMEDIATE;
INSERT OR IGNORE INTO session_cursor
    SELECT generation, MIN("offset"), x'' FROM device_queue WHERE state < 3 AND "offset" >= 0 GROUP BY generation;
UPDATE meta SET value = 3 WHERE name = 'schema_version';
COMMIT;
