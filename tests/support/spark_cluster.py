"""A Spark standalone cluster of the pyspark package: a master and workers as processes of their own, on loopback."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path

import httpx
import pyspark
from tests.support.broker_process import free_port
from tests.support.server_process import ServerProcess

from embermq.pipeline.java import find_java

HOST = "127.0.0.1"
WORKER_MB = 1024
"""What an executor takes when nobody says otherwise; it uses less."""
SCALA = "2.13"
ANSWER_S = 60.0
FAST_START = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
SECRET = "what master, workers and driver have in common"
_HEAP = "-Xmx192m"


class SparkDaemon(ServerProcess):
    """One Java process of the cluster; it answers on its page."""

    name = "Spark"
    start_s = 60.0
    main_class: str

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.page_port = free_port()

    def words(self) -> Sequence[str]:
        """Of the command line, after the class."""
        raise NotImplementedError

    def command(self) -> Sequence[str]:
        home = Path(pyspark.__file__).parent
        java = find_java(self.folder / "java").home / "bin" / "java"
        # What the scripts of Spark's own distribution set; executors are started with it too.
        environment = (
            f"SPARK_HOME={home}",
            f"SPARK_LOCAL_IP={HOST}",
            f"SPARK_SCALA_VERSION={SCALA}",
            f"JAVA_TOOL_OPTIONS={FAST_START}",
        )
        options = (_HEAP, f"-Djava.io.tmpdir={self.folder}", "-cp", f"{home}/jars/*")
        properties = self.folder / "spark.properties"
        properties.touch(0o600)
        properties.write_text(
            f"spark.authenticate true\nspark.authenticate.secret {SECRET}\nspark.network.crypto.enabled true\n"
        )
        own = ("--host", HOST, "--webui-port", str(self.page_port), "--properties-file", str(properties))
        return ["env", *environment, str(java), *options, self.main_class, *own, *self.words()]

    def state(self) -> dict[str, object]:
        """What its page tells machines."""
        found: dict[str, object] = httpx.get(f"http://{HOST}:{self.page_port}/json/", timeout=ANSWER_S).json()
        return found

    def answers(self) -> bool:
        try:
            return bool(self.state())
        except (httpx.HTTPError, ValueError):  # or its page is there, and not what it says
            return False

    def close(self) -> None:
        """With what it started: executors are its children."""
        if self.is_running:
            os.killpg(self.pid, signal.SIGKILL)
        super().close()


class SparkMaster(SparkDaemon):
    """Knows workers and applications."""

    main_class = "org.apache.spark.deploy.master.Master"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.port = free_port()

    @property
    def url(self) -> str:
        return f"spark://{HOST}:{self.port}"

    def words(self) -> Sequence[str]:
        return ["--port", str(self.port)]


class SparkWorker(SparkDaemon):
    """Starts executors; `slots` is how many tasks at a time."""

    main_class = "org.apache.spark.deploy.worker.Worker"

    def __init__(self, folder: Path, master: SparkMaster, slots: int) -> None:
        super().__init__(folder)
        self.master = master
        self.slots = slots

    def words(self) -> Sequence[str]:
        work = ["--work-dir", str(self.folder / "work")]
        return [*work, "--cores", str(self.slots), "--memory", f"{WORKER_MB}m", self.master.url]

    def executors(self) -> list[Path]:
        """Folders of those that it has started."""
        return list(self.folder.glob("work/app-*/*"))

    def answers(self) -> bool:
        return super().answers() and f":{self.page_port}" in str(self.master.state()["workers"])
