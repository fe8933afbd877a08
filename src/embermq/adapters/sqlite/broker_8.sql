-- From schema version 7 to 8: groups of durable queues whose row is not named by them alone, which an older EmberMQ would
-- take for others.
UPDATE meta SET value = 8 WHERE name = 'schema_version';
