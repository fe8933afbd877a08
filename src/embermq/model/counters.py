"""What the broker counts; observability turns a snapshot of it into metrics."""

from msgspec import Struct


class Counters(Struct):
    """Running totals since start."""

    connections_accepted: int = 0
    connections_refused: int = 0
    refused_session_wait: int = 0
    refused_connections_max: int = 0
    refused_address_max: int = 0
    refused_connect_rate: int = 0
    refused_untold: int = 0
    """Of the three before, those that were closed without an answer."""
    tls_handshakes_dropped: int = 0
    tls_handshakes_failed: int = 0
    takeovers: int = 0
    logins_failed: int = 0
    logins_unchecked: int = 0
    login_answers_delayed: int = 0
    passwords_evicted: int = 0
    credentials_expired: int = 0
    credentials_withdrawn: int = 0
    messages_received: int = 0
    messages_sent: int = 0
    messages_stored: int = 0
    messages_elided: int = 0
    dropped_offline_limit: int = 0
    dropped_expired: int = 0
    application_unreadable: int = 0
    dropped_slow: int = 0
    dropped_too_large: int = 0
    slow_readers_closed: int = 0
    publishes_refused: int = 0
    refused_publish_rate: int = 0
    """Those of MQTT 5 clients that publish too fast, QoS 0 included."""
    publishers_throttled: int = 0
    """How often a client of MQTT 3 was not read for a while because it publishes too fast."""
    refused_session_store: int = 0
    refused_log_full: int = 0
    """Connections ended by a message for which there was no room while the log did not answer."""
    refused_subscriptions: int = 0
    """Over what one session may have."""
    refused_subscriptions_user: int = 0
    refused_subscriptions_broker: int = 0
    refused_sessions_user: int = 0
    """New kept sessions over what one user may have; `_broker`: over what there may be in all."""
    refused_sessions_broker: int = 0
    refused_retained: int = 0
    nodes_not_understood: int = 0
    nodes_refused: int = 0
    """What other nodes of the cluster have said that this version does not know."""
    queue_subscriptions_refused: int = 0
    queue_consumers_stalled: int = 0
    """How often one took nothing for a whole lease."""
    queue_responses_late: int = 0
    """Responses for which nobody waited, or not any more."""
    queue_responses_dropped: int = 0
    """Responses that were too many, or too large, for a consumer that does not take them."""
    queue_bodies_missing: int = 0
    """Messages of durable queues whose record nobody has any more."""
    connects_banned: int = 0
    connects_denied: int = 0
    connects_sent_elsewhere: int = 0
    publishes_denied: int = 0
    subscriptions_denied: int = 0
    deliveries_denied: int = 0
    damaged_records: int = 0
    """Records of our own disk that are not what was written; they are set aside."""
    application_resent: int = 0
    """Messages that an APPLICATION client was sent again on a connection because it had not acknowledged them."""
    application_sent_away: int = 0
    """How often one of MQTT 5 was disconnected for that."""
    application_skipped: int = 0
    application_parked: int = 0
    application_redriven: int = 0
    messages_replayed: int = 0
    messages_of_rules: int = 0
    protocol_errors: int = 0
    commits: int = 0
    commits_failed: int = 0
    wills_published: int = 0
    redelivered_after_start: int = 0
    deliveries_repaired: int = 0
    """Stored deliveries that the session data had lost, and that were stored again."""
    repair_records_missing: int = 0
    """Positions that a repair should have looked at and found no more in the log."""
    reauthentications: int = 0
    reauthentications_refused: int = 0
    sessions_expired: int = 0
    sessions_lost: int = 0
    """Sessions that were ended because the session store was emptied and had more of them than memory."""
    retained_expired: int = 0
    unexpected_errors: int = 0
    """In work beside the clients', by errors that nobody foresaw: each is logged, and the work goes on."""
    sockets_opened: int = 0
    bytes_received: int = 0
    bytes_sent: int = 0
    packets_received: int = 0
    messages_sent_qos_0: int = 0
    payload_bytes_received: int = 0
    payload_bytes_sent: int = 0
