"""The settings of a broker on servers: its log in Kafka, everything else that it keeps in Redis."""

from __future__ import annotations

from tests.support.kafka_server import KafkaCluster, KafkaServer
from tests.support.redis_cluster import RedisCluster
from tests.support.redis_server import RedisServer


def on_servers(
    kafka: KafkaServer | KafkaCluster, redis: RedisServer | RedisCluster, prefix: str = ""
) -> dict[str, object]:
    """`--set` assignments; without a `prefix` that of no other broker. Two brokers need a Redis each."""
    return {
        "stores.log": f"kafka://{kafka.bootstrap}",
        "kafka.prefix": prefix or kafka.prefix(),
        "stores.session": redis.url,
    }
