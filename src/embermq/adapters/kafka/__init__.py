"""The message log in Kafka.

In the broker only this room imports the driver (extra `servers`), and only `app` constructs what is here, when
`stores.log` names a Kafka. `appender` produces records, `message_log` reads and trims them, `log_topic` makes and
checks their topic. The broker speaks of positions (`model.position`), which hold Kafka's partition and offset.
"""
