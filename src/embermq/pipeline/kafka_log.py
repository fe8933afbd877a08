"""The message log in Kafka, as the driver is told of it: where it is, what its topics are called, how clients enter."""

from typing import Literal

from msgspec import Struct

from embermq.formats.pipeline_progress import progress_topic
from embermq.formats.receipts import receipts_topic
from embermq.pipeline.errors import PipelineSettingsError

Mechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]

_LOGIN_MODULES: dict[Mechanism, str] = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


class KafkaLog(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One log: servers, prefix of its topics, and what clients show. Never shows its password."""

    bootstrap: str
    """host:port, several with commas between them."""
    prefix: str = "embermq"
    tls: bool = False
    tls_ca_file: str = ""
    """Certificates (PEM) that the servers' are checked with; without it the system's."""
    tls_cert_file: str = ""
    """Certificate and key (PEM, the key as PKCS#8) that is shown to the servers."""
    record_bytes_max: int = 0
    """What an application log has to take of one record; 0 when that is not known."""
    slot: int | None = None
    """Of a cluster with several whose log it is: records of the others are in it as copies, which those count."""
    shared_partitions: int = 1
    """Of the log of a shared group that is made anew."""
    user: str = ""
    password: str = ""
    mechanism: Mechanism = "SCRAM-SHA-512"

    def __repr__(self) -> str:
        return f"KafkaLog({self.bootstrap}, prefix {self.prefix})"

    @property
    def has_copies(self) -> bool:
        """Whether records of other slots are in it."""
        return self.slot is not None

    @property
    def log_topic(self) -> str:
        """The topic of the message log."""
        return f"{self.prefix}.msg.all"

    @property
    def application_prefix(self) -> str:
        """What the name of each application log begins with."""
        return f"{self.prefix}.msg.app."

    @property
    def rejected_topic(self) -> str:
        """Records that could not be understood, or whose application log is gone."""
        return f"{self.prefix}.msg.rejected"

    @property
    def receipts_topic(self) -> str:
        """Samples of delivery latency, for the traffic windows."""
        return receipts_topic(self.prefix)

    @property
    def progress_topic(self) -> str:
        """How far each query is; see `formats.pipeline_progress`."""
        return progress_topic(self.prefix)

    def client_options(self) -> dict[str, str]:
        """Options by which a client of librdkafka reaches and enters this Kafka, login and TLS files
        included."""
        options = {"bootstrap.servers": self.bootstrap, "security.protocol": self._protocol}
        if self.tls_ca_file:
            options["ssl.ca.location"] = self.tls_ca_file
        if self.tls_cert_file:
            options |= {
                "ssl.certificate.location": self.tls_cert_file,
                "ssl.key.location": self.tls_cert_file,
            }
        if self.user:
            options |= {
                "sasl.mechanism": self.mechanism,
                "sasl.username": self.user,
                "sasl.password": self.password,
            }
        return options

    def spark_options(self) -> dict[str, str]:
        """For Spark's source and sink, which hand them on to Kafka's Java clients."""
        options = {"bootstrap.servers": self.bootstrap, "security.protocol": self._protocol}
        if self.tls_ca_file:
            options |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": self.tls_ca_file}
        if self.tls_cert_file:
            options |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": self.tls_cert_file}
        if self.user:
            login = f"username={_quoted(self.user)} password={_quoted(self.password)}"
            options |= {
                "sasl.mechanism": self.mechanism,
                "sasl.jaas.config": f"{_LOGIN_MODULES[self.mechanism]} required {login};",
            }
        return {f"kafka.{name}": value for name, value in options.items()}

    @property
    def _protocol(self) -> str:
        return ("SASL_" if self.user else "") + ("SSL" if self.tls else "PLAINTEXT")


def check_kafka(kafka: KafkaLog) -> None:
    """Raise PipelineSettingsError for a log that cannot be spoken to."""
    if not kafka.bootstrap:
        raise PipelineSettingsError("the message log in Kafka has no servers: bootstrap is empty")
    if not kafka.tls and (kafka.tls_ca_file or kafka.tls_cert_file):
        raise PipelineSettingsError(
            "the message log in Kafka has certificates, but its servers are not asked for TLS"
        )


def _quoted(text: str) -> str:
    """As a value of Java's login configuration. A line end would end it, and Java would tell what stands behind."""
    escaped = text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n").replace("\r", r"\r")
    return f'"{escaped}"'
