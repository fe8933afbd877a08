"""What the pipeline's process is told: its settings, and where the stores are that it reads and writes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs

from embermq.adapters.kafka.address import KafkaAddress, parse_address
from embermq.adapters.redis.address import parse_address as parse_redis
from embermq.app.errors import StartError, how_to_install, missing
from embermq.app.settings import SQLITE
from embermq.app.store_addresses import kafka_address
from embermq.pipeline import settings as bounds
from embermq.pipeline.errors import PipelineError, PipelineSettingsError
from embermq.pipeline.kafka_log import KafkaLog
from embermq.pipeline.log_look import LogLook
from embermq.pipeline.places import Places
from embermq.pipeline.rules.settings import query_of_rule
from embermq.pipeline.settings import DriverSettings, check_settings, is_spark_installed

LOOK_S = 5.0
"""How long a command waits for an answer of Kafka."""
READ_S = 60.0
"""And one that reads records."""
PKCS8 = "PRIVATE KEY"
KEY = re.compile(rb"-----BEGIN ([A-Z ]*PRIVATE KEY)-----")

if TYPE_CHECKING:
    from embermq.app.config import Settings
    from embermq.pipeline.rejected import RejectedRecord
    from embermq.pipeline.sources.kafka_positions import KafkaPositions


def driver_settings(settings: Settings) -> DriverSettings:
    """All of it, passwords included. Raises StartError for a password file that cannot be read, and for a key that
    Spark cannot."""
    found = _with_passwords(settings)
    if found.kafka is not None and found.kafka.tls_cert_file:
        _check_key(found.kafka.tls_cert_file)
    return found


def _with_passwords(settings: Settings) -> DriverSettings:
    log = settings.stores.log
    return _driver_settings(settings, None if log == SQLITE else kafka_address(log))


def _check_key(path: str) -> None:
    """Java understands one form of a key; the driver of the broker itself understands more."""
    try:
        pem = Path(path).read_bytes()
    except OSError as error:
        raise StartError(f"stores.log: cannot read cert_file {path!r}: {error.strerror}") from error
    found = {kind.decode() for kind in KEY.findall(pem)}
    if found != {PKCS8}:
        has = f"has a key of the form {', '.join(sorted(found))}" if found else "has no private key"
        raise StartError(
            f"stores.log: cert_file {path!r} {has}: the pipeline runs on Java, which reads {PKCS8} (PKCS #8, without a "
            f"password) alone; openssl pkcs8 -topk8 -nocrypt -in {path} writes the key so, the certificates belong "
            "behind it; or run without the pipeline"
        )
    if unfit := _unfit_for_java(pem):
        raise StartError(
            f"stores.log: cert_file {path!r} {unfit}: the pipeline runs on Java, where Kafka's client reads keys of "
            "RSA and of elliptic curves; or run without the pipeline"
        )


def _unfit_for_java(pem: bytes) -> str:
    """What is wrong with a key of the right form; "" for one that Kafka's Java client reads."""
    from cryptography.exceptions import UnsupportedAlgorithm  # large, and needed here alone
    from cryptography.hazmat.primitives.asymmetric import dsa, ec, rsa
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(pem, None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        return f"has a key that cannot be read ({error})"
    if isinstance(key, rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | dsa.DSAPrivateKey):
        return ""
    return f"has an {type(key).__name__.lstrip('_')}"


def check_pipeline(settings: Settings) -> None:
    """Raise ValueError, naming the setting, for what this log and these stores cannot run; reads no file."""
    log = settings.stores.log
    try:
        driver = _driver_settings(settings, None if log == SQLITE else parse_address(log))
    except ValueError:
        return  # said where stores are looked at
    check_settings(driver)


def missing_for_spark(settings: Settings) -> str:
    """Why Spark cannot run or read the log, and the command that puts it right; "" when it can, or need not."""
    if not settings.pipeline.enabled:
        return ""
    if not is_spark_installed():
        return f"pipeline.enabled = true needs Spark, which is not installed: {how_to_install('pipeline')}"
    if settings.stores.log == SQLITE:
        return ""
    from embermq.pipeline.jars import connector_jars  # loads what fetches jars

    try:
        connector_jars(settings.pipeline)
    except PipelineSettingsError as error:
        return str(error)
    return ""


def look_at_log(settings: Settings) -> LogLook | None:
    """Where the queries stand, asked of Kafka; None for the embedded log. Raises PipelineError, StartError."""
    positions = _positions(settings)
    if positions is None:
        return None
    bounds, told = positions.bounds(), positions.published()
    done = told.done
    pipeline = settings.pipeline
    queries = [*pipeline.queries, *map(query_of_rule, settings.rules)]
    wanted = [query for query in queries if pipeline.enabled or query in done]
    return LogLook(
        bounds, {query: done.get(query, {}) for query in wanted}, positions.accepted_ms, told.report
    )


def rejected_records(settings: Settings, limit: int) -> Iterable[RejectedRecord]:
    """What dispatch could not use, at most so many of each partition. Raises PipelineError, StartError."""
    from embermq.pipeline.rejected import rejected_in_files, rejected_in_kafka

    positions = _positions(settings)
    if positions is None:
        return rejected_in_files(Places(Path(settings.data_dir)), limit)
    return rejected_in_kafka(positions, limit)


def kafka_log_id(settings: Settings) -> int:
    """Which log the message store has rows of. Raises PipelineError, StartError."""
    positions = _positions(settings)
    assert positions is not None, "the log is in Kafka"
    return positions.archive_id()


def kafka_positions(settings: Settings) -> KafkaPositions:
    """Of a log that is in Kafka, to read in. Raises PipelineError, StartError."""
    found = _positions(settings, READ_S)
    assert found is not None, "the log is in Kafka"
    return found


def _positions(settings: Settings, wait_s: float = LOOK_S) -> KafkaPositions | None:
    kafka = _with_passwords(settings).kafka
    if kafka is None:
        return None
    try:
        from embermq.pipeline.sources.kafka_positions import KafkaPositions
    except ImportError as error:
        raise PipelineError(f"stores.log needs {missing(error)}") from error
    return KafkaPositions(kafka, wait_s)


def _driver_settings(settings: Settings, address: KafkaAddress | None) -> DriverSettings:
    return DriverSettings(
        **structs.asdict(settings.pipeline),
        restarts_max=bounds.RESTARTS_MAX,
        backoff_first_ms=bounds.BACKOFF_FIRST_MS,
        rules=settings.rules,
        message_store="" if settings.stores.static == SQLITE else settings.stores.static,
        sql=settings.sql,
        kafka=None if address is None else _kafka_log(address, settings),
    )


def _kafka_log(address: KafkaAddress, settings: Settings) -> KafkaLog:
    from embermq.formats.kafka_record import record_bytes_max

    return KafkaLog(
        bootstrap=address.bootstrap,
        prefix=settings.kafka.prefix,
        slot=parse_redis(settings.stores.session).slot if settings.cluster.slots > 1 else None,
        shared_partitions=settings.application.shared_partitions,
        record_bytes_max=record_bytes_max(settings.mqtt.packet_bytes_max),
        tls=address.tls,
        tls_ca_file=address.ca_file,
        tls_cert_file=address.cert_file,
        user=address.username,
        password=address.password,
        mechanism=address.sasl_mechanism,
    )
