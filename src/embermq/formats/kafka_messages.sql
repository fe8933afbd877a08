-- In messages.db, when the message log is in Kafka: as `message`, by partition and offset.
CREATE TABLE IF NOT EXISTS kafka_message (
    "partition" INTEGER NOT NULL,
    "offset"    INTEGER NOT NULL,
    topic       TEXT    NOT NULL,
    accepted_ms INTEGER NOT NULL,
    qos         INTEGER NOT NULL,
    retain      INTEGER NOT NULL,
    publisher   TEXT    NOT NULL,
    version     INTEGER NOT NULL,
    expires_ms  INTEGER,
    properties  TEXT,
    payload     BLOB    NOT NULL,
    PRIMARY KEY ("partition", "offset")
);

CREATE INDEX IF NOT EXISTS kafka_message_by_topic ON kafka_message (topic, "partition", "offset");
