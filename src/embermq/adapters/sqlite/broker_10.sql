-- From schema version 9 to 10: how large the records of messages in queues are, 0 for what is not known.
BEGIN IMMEDIATE;
ALTER TABLE queue_entry ADD COLUMN record_bytes INTEGER NOT NULL DEFAULT 0;
ALTER TABLE queue_delayed ADD COLUMN record_bytes INTEGER NOT NULL DEFAULT 0;
UPDATE meta SET value = 10 WHERE name = 'schema_version';
COMMIT;
