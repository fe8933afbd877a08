-- From schema version 3 to 4: where readers of logs in Kafka stand, in a table of its own.
UPDATE meta SET value = 4 WHERE name = 'schema_version';
