-- From schema version 6 to 7: subscriptions to durable queues, which an older EmberMQ would answer as any others.
BEGIN IMMEDIATE;
ALTER TABLE subscription ADD COLUMN queue TEXT NOT NULL DEFAULT '';
UPDATE meta SET value = 7 WHERE name = 'schema_version';
COMMIT;
