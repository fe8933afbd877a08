-- From schema version 5 to 6: tables of durable queues, which an older EmberMQ would leave behind when it trims its log.
UPDATE meta SET value = 6 WHERE name = 'schema_version';
