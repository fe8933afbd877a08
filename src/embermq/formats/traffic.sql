-- traffic.db: written by the pipeline's traffic query alone, read by the dashboard and the API.
-- Windows of event time (when a message was accepted), each `length_ms` long from `window_ms` (Unix time) on.
CREATE TABLE IF NOT EXISTS traffic_window (
    window_ms     INTEGER NOT NULL,
    root          TEXT    NOT NULL,  -- first topic level
    length_ms     INTEGER NOT NULL,
    messages      INTEGER NOT NULL,
    payload_bytes INTEGER NOT NULL,
    qos1          INTEGER NOT NULL,
    qos2          INTEGER NOT NULL,
    late          INTEGER NOT NULL,  -- messages that came after the watermark; not in the counts before
    PRIMARY KEY (window_ms, root)
) WITHOUT ROWID;

-- The same of each durable queue ($queue/<name>): what was published to it. traffic_window has all of them in the
-- root $queue.
CREATE TABLE IF NOT EXISTS queue_window (
    window_ms     INTEGER NOT NULL,
    queue         TEXT    NOT NULL,
    length_ms     INTEGER NOT NULL,
    messages      INTEGER NOT NULL,
    payload_bytes INTEGER NOT NULL,
    qos1          INTEGER NOT NULL,
    qos2          INTEGER NOT NULL,
    late          INTEGER NOT NULL,
    PRIMARY KEY (window_ms, queue)
) WITHOUT ROWID;

-- Latency from accept to delivery, in microseconds. client_type: 0 DEVICE, 1 APPLICATION.
CREATE TABLE IF NOT EXISTS latency_window (
    window_ms   INTEGER NOT NULL,
    root        TEXT    NOT NULL,
    client_type INTEGER NOT NULL,
    length_ms   INTEGER NOT NULL,
    deliveries  INTEGER NOT NULL,  -- samples
    p50_us      INTEGER NOT NULL,
    p95_us      INTEGER NOT NULL,
    p99_us      INTEGER NOT NULL,
    max_us      INTEGER NOT NULL,
    PRIMARY KEY (window_ms, root, client_type)
) WITHOUT ROWID;

-- What the quantiles are made of, kept while their window may still change: bucket b holds latencies from
-- 2^(b/16) up to 2^((b+1)/16) microseconds, so a quantile is within 4.5 % of the sample.
CREATE TABLE IF NOT EXISTS latency_bucket (
    window_ms   INTEGER NOT NULL,
    root        TEXT    NOT NULL,
    client_type INTEGER NOT NULL,
    bucket      INTEGER NOT NULL,
    deliveries  INTEGER NOT NULL,
    max_us      INTEGER NOT NULL,
    PRIMARY KEY (window_ms, root, client_type, bucket)
) WITHOUT ROWID;

-- watermark_ms: the newest accept time seen, less the allowed lateness. receipts_next: the first batch of
-- delivery receipts (broker.db) that is not in here; receipts_next;<partition>: the same of a topic of receipts.
CREATE TABLE IF NOT EXISTS traffic_state (
    name  TEXT PRIMARY KEY,
    value INTEGER NOT NULL
) WITHOUT ROWID;
