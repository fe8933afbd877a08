"""The message log in Kafka.

Only here is the driver imported (extra `cluster`), and only `app` constructs what is here, when `stores.log` names a
Kafka. `appender` produces records, `message_log` reads and trims them, `log_topic` makes and checks their topic.
Everything inside the broker speaks of sequence numbers; partitions and offsets stay in this room.
"""
