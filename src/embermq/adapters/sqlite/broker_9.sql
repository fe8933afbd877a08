-- From schema version 8 to 9: where a record under way stands in the message log, which an older EmberMQ would not write.
BEGIN IMMEDIATE;
ALTER TABLE application_inflight ADD COLUMN source_partition INTEGER NOT NULL DEFAULT -1;
ALTER TABLE application_inflight ADD COLUMN source_offset INTEGER NOT NULL DEFAULT -1;
ALTER TABLE application_inflight ADD COLUMN number INTEGER NOT NULL DEFAULT -1;
UPDATE meta SET value = 9 WHERE name = 'schema_version';
COMMIT;
