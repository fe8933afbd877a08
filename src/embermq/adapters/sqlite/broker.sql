-- broker.db: written by the broker alone. The state beside the message log, as a checkpoint of its segment files. Read by
-- the pipeline with short transactions.

CREATE TABLE IF NOT EXISTS session (
    generation        INTEGER PRIMARY KEY,
    client_id         TEXT    NOT NULL,
    epoch             INTEGER NOT NULL,
    client_type       INTEGER NOT NULL,
    username          TEXT    NOT NULL,
    version           INTEGER NOT NULL,
    expiry_interval_s INTEGER NOT NULL,
    connected         INTEGER NOT NULL,
    expires_ms        INTEGER NOT NULL,
    created_ms        INTEGER NOT NULL,
    certificate       TEXT    NOT NULL DEFAULT ''
);

CREATE TABLE IF NOT EXISTS subscription (
    generation   INTEGER NOT NULL,
    topic_filter TEXT    NOT NULL,
    options      INTEGER NOT NULL,
    identifier   INTEGER NOT NULL,
    since_offset INTEGER NOT NULL,
    queue        TEXT    NOT NULL DEFAULT '',
    PRIMARY KEY (generation, topic_filter)
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS will (
    generation INTEGER PRIMARY KEY,
    client_id  TEXT    NOT NULL,
    delay_s    INTEGER NOT NULL,
    due_ms     INTEGER NOT NULL,
    record     BLOB    NOT NULL,
    username    TEXT    NOT NULL DEFAULT '',
    certificate TEXT    NOT NULL DEFAULT ''
);

-- Incoming QoS 2 PUBLISHes whose PUBREL has not come.
CREATE TABLE IF NOT EXISTS receiving (
    generation INTEGER NOT NULL,
    packet_id  INTEGER NOT NULL,
    PRIMARY KEY (generation, packet_id)
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS retained (
    topic    TEXT PRIMARY KEY,
    "offset" INTEGER NOT NULL,
    record   BLOB    NOT NULL
);

-- Stored deliveries to persistent DEVICE sessions. state: 0 queued, 1 sent, 2 released, 3 done.
CREATE TABLE IF NOT EXISTS device_queue (
    generation  INTEGER NOT NULL,
    seq         INTEGER NOT NULL,
    "offset"    INTEGER NOT NULL,
    packet_id   INTEGER NOT NULL,
    state       INTEGER NOT NULL,
    flags       INTEGER NOT NULL,
    expires_ms  INTEGER NOT NULL,
    identifiers BLOB    NOT NULL,
    record      BLOB    NOT NULL,
    PRIMARY KEY (generation, seq)
) WITHOUT ROWID;

-- Done rows wait here for the dispatcher's floor to pass them: a repeat of their record is then known.
CREATE INDEX IF NOT EXISTS device_queue_done ON device_queue ("offset") WHERE state = 3;

-- Entries of application logs at and above committed_offset that are sent, released or done out of order.
CREATE TABLE IF NOT EXISTS application_inflight (
    generation       INTEGER NOT NULL,
    "offset"         INTEGER NOT NULL,
    packet_id        INTEGER NOT NULL,
    state            INTEGER NOT NULL,
    PRIMARY KEY (generation, "offset")
) WITHOUT ROWID;

-- Where readers of application logs stand: everything below committed_offset is settled; packet_id is the last that was
-- given. The pipeline reads this table to trim the logs, and drops the log of a generation that is no longer here.
-- settled: how many of those below it were sent.
CREATE TABLE IF NOT EXISTS application_position (
    generation       INTEGER PRIMARY KEY,
    packet_id        INTEGER NOT NULL,
    committed_offset INTEGER NOT NULL,
    settled          INTEGER NOT NULL DEFAULT 0
);

-- What was settled without an acknowledgement, and why (model/unacknowledged.py); for reports, the broker does not read
-- it. ENDED stands at the committed offset of a session that has ended: what it was owed from there on.
CREATE TABLE IF NOT EXISTS application_unacknowledged (
    generation INTEGER NOT NULL,
    "offset"   INTEGER NOT NULL,
    why        INTEGER NOT NULL,
    written_ms INTEGER NOT NULL,
    PRIMARY KEY (generation, "offset", why)
) WITHOUT ROWID;

CREATE INDEX IF NOT EXISTS application_unacknowledged_written ON application_unacknowledged (written_ms);

-- Messages that an application did not acknowledge, however often they were sent (model/parked_message.py). stage: 0
-- parked, 1 to be sent again, 2 under way; state as in application_inflight; identifiers: u32 each, the big end first.
CREATE TABLE IF NOT EXISTS parked_message (
    generation    INTEGER NOT NULL,
    number        INTEGER NOT NULL,
    stage         INTEGER NOT NULL,
    state         INTEGER NOT NULL,
    packet_id     INTEGER NOT NULL,
    qos           INTEGER NOT NULL,
    parked_ms     INTEGER NOT NULL,
    attempts      INTEGER NOT NULL,
    retain        INTEGER NOT NULL,
    identifiers   BLOB    NOT NULL,
    topic         TEXT    NOT NULL,
    payload_bytes INTEGER NOT NULL,
    record        BLOB    NOT NULL,
    PRIMARY KEY (generation, number)
);

-- Samples of delivery latency for the traffic windows. body: repeated (i64 accepted_ms, u32 latency_us,
-- u8 client type, u8 length, first topic level).
CREATE TABLE IF NOT EXISTS receipt_batch (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    written_ms INTEGER NOT NULL,
    body       BLOB    NOT NULL
);

-- Durable queues (model/queue_rows.py). A queue is its generation, which no other one ever gets; settings: JSON.
CREATE TABLE IF NOT EXISTS queue (
    generation         INTEGER PRIMARY KEY,
    name               TEXT    NOT NULL,
    settings           BLOB    NOT NULL,
    sequences_reserved INTEGER NOT NULL,
    is_paused          INTEGER NOT NULL
);

-- Deleted queues whose rows go bit by bit: nobody reads them any more.
CREATE TABLE IF NOT EXISTS queue_ended (
    generation INTEGER PRIMARY KEY
);

-- name: with a U+0000 and a number behind it, here and in queue_mark, when the group was made while marks of a former one
-- of its name were still in queue_group_ended.
CREATE TABLE IF NOT EXISTS queue_group (
    queue          INTEGER NOT NULL,
    name           TEXT    NOT NULL,
    first_sequence INTEGER NOT NULL,
    idle_since_ms  INTEGER NOT NULL,
    is_paused      INTEGER NOT NULL,
    PRIMARY KEY (queue, name)
) WITHOUT ROWID;

-- Removed groups whose marks go bit by bit: nobody reads them any more. swept: those of messages below it are gone.
CREATE TABLE IF NOT EXISTS queue_group_ended (
    queue INTEGER NOT NULL,
    name  TEXT    NOT NULL,
    swept INTEGER NOT NULL,
    PRIMARY KEY (queue, name)
) WITHOUT ROWID;

-- Messages, one row each. message_key: NULL without one. rest: what few have, NULL for the others (queue_rows.py beside
-- this file).
CREATE TABLE IF NOT EXISTS queue_entry (
    queue       INTEGER NOT NULL,
    sequence    INTEGER NOT NULL,
    partition   INTEGER NOT NULL,
    "offset"    INTEGER NOT NULL,
    expires_ms  INTEGER NOT NULL,
    message_key TEXT,
    rest        BLOB,
    record_bytes INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (queue, sequence)
) WITHOUT ROWID;

-- Which records are needed: several entries may stand for one (dead letters).
CREATE INDEX IF NOT EXISTS queue_entry_offset ON queue_entry ("offset");

-- Messages that become entries at visible_ms.
CREATE TABLE IF NOT EXISTS queue_delayed (
    queue       INTEGER NOT NULL,
    ticket      INTEGER NOT NULL,
    "offset"    INTEGER NOT NULL,
    visible_ms  INTEGER NOT NULL,
    expires_ms  INTEGER NOT NULL,
    message_key TEXT,
    record_bytes INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (queue, ticket)
) WITHOUT ROWID;

CREATE INDEX IF NOT EXISTS queue_delayed_offset ON queue_delayed ("offset");

-- What a group knows of a message that it does not simply owe. state: 0 queued, 2 retry, 3 acked, 4 in the dead letters;
-- attempts: NULL for none.
CREATE TABLE IF NOT EXISTS queue_mark (
    queue         INTEGER NOT NULL,
    sequence      INTEGER NOT NULL,
    message_group TEXT    NOT NULL,
    state         INTEGER NOT NULL,
    due_ms        INTEGER NOT NULL,
    attempts      BLOB,
    PRIMARY KEY (queue, sequence, message_group)
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS queue_dedup (
    queue    INTEGER NOT NULL,
    dedup_id TEXT    NOT NULL,
    until_ms INTEGER NOT NULL,
    PRIMARY KEY (queue, dedup_id)
) WITHOUT ROWID;

CREATE INDEX IF NOT EXISTS queue_dedup_until ON queue_dedup (until_ms);

-- Records of messages that the log has let go of. They go with the last row of queue_entry or queue_delayed that has their
-- offset.
CREATE TABLE IF NOT EXISTS queue_body (
    "offset" INTEGER PRIMARY KEY,
    record   BLOB NOT NULL
);

-- schema_version, dispatcher_floor, generation_reserved, log_id (of this message log alone, 62 bits by chance: a store on a
-- server says by it to which log it belongs), queue_generation (above those of all queues that ever were), restored_us, and
-- how far each replay is: replay:<id>; how far the log is applied: log_file, log_position, log_end (first offset not yet used), log_syncs.
CREATE TABLE IF NOT EXISTS meta (
    name  TEXT PRIMARY KEY,
    value INTEGER NOT NULL
) WITHOUT ROWID;

INSERT OR IGNORE INTO meta VALUES ('log_id', ABS(RANDOM() / 2));
