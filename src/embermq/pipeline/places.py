"""Where the pipeline keeps its files inside the broker's data directory."""

from pathlib import Path

from msgspec import Struct

from embermq.formats.segments import FOLDER


class Places(Struct, frozen=True):
    """Paths below one data directory. Nothing is created here."""

    data_dir: Path

    @property
    def broker(self) -> Path:
        """broker.db: written by the broker, read here."""
        return self.data_dir / "broker.db"

    @property
    def clock(self) -> Path:
        """clock.json: how far the wall clock is ahead of the broker's time."""
        return self.data_dir / "clock.json"

    @property
    def log(self) -> Path:
        """log/: the segment files of the message log; written by the broker, read here."""
        return self.data_dir / FOLDER

    @property
    def applications(self) -> Path:
        """applications.db: the application logs."""
        return self.data_dir / "applications.db"

    @property
    def messages(self) -> Path:
        """messages.db: the message store."""
        return self.data_dir / "messages.db"

    @property
    def archive(self) -> Path:
        """archive.db: what a message store on a server has confirmed."""
        return self.data_dir / "archive.db"

    @property
    def lake_ledger(self) -> Path:
        """lake.db: how far the lake is, beside the lake itself."""
        return self.data_dir / "lake.db"

    @property
    def lake(self) -> Path:
        """lake/: the Delta Lake table, unless `pipeline.lake_dir` names another place."""
        return self.data_dir / "lake"

    @property
    def traffic(self) -> Path:
        """traffic.db: windows of rates and latencies."""
        return self.data_dir / "traffic.db"

    @property
    def rules(self) -> Path:
        """rules.db: which messages rules could not use."""
        return self.data_dir / "rules.db"

    @property
    def control(self) -> Path:
        """control.sock: where the broker is asked for application logs in Kafka, and takes what rules make."""
        return self.data_dir / "control.sock"

    @property
    def work(self) -> Path:
        """pipeline/: what may be deleted while the pipeline is down."""
        return self.data_dir / "pipeline"

    @property
    def checkpoints(self) -> Path:
        """pipeline/checkpoints/: Spark's own; made anew at each start of a query."""
        return self.work / "checkpoints"

    @property
    def scratch(self) -> Path:
        """pipeline/scratch/: Spark's local and warehouse directories."""
        return self.work / "scratch"

    @property
    def sockets(self) -> Path:
        """pipeline/sockets: names the directory of sockets that the driver has made."""
        return self.work / "sockets"

    @property
    def status(self) -> Path:
        """pipeline/status.json: written by the driver every second."""
        return self.work / "status.json"

    @property
    def supervisor(self) -> Path:
        """pipeline/supervisor.json: written by the broker whenever the driver comes or goes."""
        return self.work / "supervisor.json"

    @property
    def driver_lock(self) -> Path:
        """pipeline/driver.lock: held by the driver as long as it lives."""
        return self.work / "driver.lock"

    @property
    def driver_log(self) -> Path:
        """pipeline/driver.log: what the driver and its JVM print."""
        return self.work / "driver.log"

    @property
    def lake_lock(self) -> Path:
        """pipeline/lake.lock: held by the Java that writes the lake as long as it lives."""
        return self.work / "lake.lock"

    def rule_table_lock(self, rule: str) -> Path:
        """pipeline/rule-tables/RULE.lock: the same for the table of a rule."""
        return self.work / "rule-tables" / f"{rule}.lock"

    @property
    def java_wrapper(self) -> Path:
        """pipeline/java/: a JAVA_HOME made for a runtime that needs a launcher of its own."""
        return self.work / "java"
