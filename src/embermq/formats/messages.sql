-- messages.db: the message store. Written by the pipeline's archive query alone, read by the broker and by people.
-- One row a position of the message log; the embedded log has the one partition 0.
CREATE TABLE IF NOT EXISTS message (
    "offset"    INTEGER PRIMARY KEY,
    "partition" INTEGER NOT NULL DEFAULT 0 CHECK ("partition" = 0),
    topic       TEXT    NOT NULL,
    accepted_ms INTEGER NOT NULL,  -- Unix time at accept
    qos         INTEGER NOT NULL,  -- as published
    retain      INTEGER NOT NULL,  -- as published, 0 or 1
    publisher   TEXT    NOT NULL,  -- client id
    version     INTEGER NOT NULL,  -- the publisher's protocol version: 3, 4, 5
    expires_ms  INTEGER,           -- absolute deadline, NULL when it never expires
    properties  TEXT,              -- JSON object by MQTT 5 property name, absent ones left out; correlation_data in
                                   -- Base64, user_properties as [{"name", "value"}]; NULL when there are none
    payload     BLOB    NOT NULL
);

-- Ranges of one topic in log order.
CREATE INDEX IF NOT EXISTS message_by_topic ON message (topic, "offset");
