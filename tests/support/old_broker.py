"""The tables of a TBMQ 1.x (here 1.4) with messages in them, made by SQL alone."""

from __future__ import annotations

from typing import Any

import psycopg

TABLES = """
CREATE TABLE device_publish_msg (
    client_id varchar(255) NOT NULL,
    serial_number bigint NOT NULL,
    topic varchar NOT NULL,
    time bigint NOT NULL,
    packet_id int,
    packet_type varchar(255),
    qos int NOT NULL,
    payload bytea NOT NULL,
    user_properties varchar,
    retain boolean,
    msg_expiry_interval int,
    payload_format_indicator int,
    content_type varchar(255),
    response_topic varchar(255),
    correlation_data bytea,
    CONSTRAINT device_publish_msg_pkey PRIMARY KEY (client_id, serial_number)
);
CREATE TABLE device_session_ctx (
    client_id varchar(255) NOT NULL CONSTRAINT device_session_ctx_pkey PRIMARY KEY,
    last_updated_time bigint NOT NULL,
    last_serial_number bigint,
    last_packet_id int
);
"""
COLUMNS = (
    "client_id",
    "serial_number",
    "topic",
    "time",
    "packet_id",
    "packet_type",
    "qos",
    "payload",
    "user_properties",
    "retain",
    "msg_expiry_interval",
    "payload_format_indicator",
    "content_type",
    "response_topic",
    "correlation_data",
)
# Serial numbers count from 0 on and packet ids from 1 to 65534, as 1.x counts them.
_FILL = """
INSERT INTO device_publish_msg
SELECT 'device-' || c, s, 'plant/' || c || '/state', {now_ms} + s, (s + c * 7919) % 65534 + 1,
    CASE WHEN (s + c) % 10 = 0 THEN 'PUBREL' ELSE 'PUBLISH' END, CASE WHEN (s + c) % 5 = 0 THEN 2 ELSE 1 END,
    convert_to('message ' || s || ' of ' || c, 'UTF8'),
    CASE WHEN s % 4 = 0 THEN '{{"props":[{{"k":"n","v":"' || s || '"}}]}}' END, s % 50 = 0,
    CASE WHEN s % 8 = 0 THEN 86400 END, CASE WHEN s % 4 = 0 THEN 1 END, CASE WHEN s % 4 = 0 THEN 'text/plain' END,
    CASE WHEN s % 4 = 0 THEN 'answers/' || c END, CASE WHEN s % 4 = 0 THEN '\\x0102'::bytea END
FROM generate_series(0, {clients} - 1) AS c, generate_series({first}, {first} + {messages} - 1) AS s;
INSERT INTO device_session_ctx
SELECT 'device-' || c, {now_ms}, {first} + {messages} - 1, ({first} + {messages} - 1 + c * 7919) % 65534 + 1
FROM generate_series(0, {clients} - 1) AS c;
"""


class OldBroker:
    """One database with the two tables."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._connection: psycopg.Connection[tuple[Any, ...]] = psycopg.connect(url, autocommit=True)
        self.run(TABLES)

    def run(self, statement: str, values: tuple[object, ...] | None = None) -> list[tuple[Any, ...]]:
        """Any SQL; the rows."""
        cursor = self._connection.execute(statement.encode(), values)
        return cursor.fetchall() if cursor.description is not None else []

    def fill(self, *, clients: int, messages: int, now_ms: int, first: int = 0) -> None:
        """`messages` for each of `clients`, device-0 on, from the serial number `first` on."""
        self.run(_FILL.format(clients=clients, messages=messages, now_ms=now_ms, first=first))

    def add(self, **values: object) -> None:
        """One message."""
        row = {
            "client_id": "device-0",
            "topic": "t",
            "qos": 1,
            "payload": b"p",
            "packet_type": "PUBLISH",
        } | values
        names = ", ".join(row)
        places = ", ".join(["%s"] * len(row))
        self.run(f"INSERT INTO device_publish_msg ({names}) VALUES ({places})", tuple(row.values()))

    def close(self) -> None:
        """Leave the database."""
        self._connection.close()
