-- Application logs whose session generation is gone: dropped once dispatch has passed the end that the message
-- log had when this was seen, for a generation is stamped no more once it is gone.
CREATE TABLE IF NOT EXISTS application_gone (
    generation INTEGER PRIMARY KEY,
    passed_at  INTEGER NOT NULL
);
