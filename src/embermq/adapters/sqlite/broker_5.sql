-- From schema version 4 to 5: parked_message, which an older EmberMQ would not deliver from.
UPDATE meta SET value = 5 WHERE name = 'schema_version';
