"""SeaweedFS from PyPI: storage that speaks S3, as a process of the test's own."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pyarrow.fs as pafs
from tests.support.broker_process import free_port
from tests.support.server_process import ServerProcess

KEY, SECRET = "embermq", "secret-of-tests"
BUCKET = "lakes"
REGION = "us-east-1"
SERVERS = ("master", "volume", "filer", "s3")


class SeaweedServer(ServerProcess):
    """One bucket, BUCKET, is there when it answers. With `is_open` it asks for no login and looks at no signature."""

    name = "SeaweedFS"
    start_s = 60.0

    def __init__(self, folder: Path, *, is_open: bool = False) -> None:
        super().__init__(folder)
        self._is_open = is_open
        self._ports = {name: (free_port(), free_port()) for name in SERVERS}
        self.port = self._ports["s3"][0]
        self.endpoint = f"http://127.0.0.1:{self.port}"

    def command(self) -> Sequence[str]:
        """See the base."""
        (self.folder / "data").mkdir(exist_ok=True)
        login = {"name": "tests", "credentials": [{"accessKey": KEY, "secretKey": SECRET}]}
        config = self.folder / "s3.json"
        config.write_text(json.dumps({"identities": [login | {"actions": ["Admin"]}]}))
        ports = [
            word
            for name, (http, rpc) in self._ports.items()
            for word in (f"-{name}.port={http}", f"-{name}.port.grpc={rpc}")
        ]
        return [
            str(Path(sys.executable).with_name("weed")),
            *("server", f"-dir={self.folder / 'data'}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-s3"),
            *("-master.telemetry=false", "-s3.port.iceberg=0", "-s3.port.lance=0"),
            *(() if self._is_open else (f"-s3.config={config}",)),
            *("-master.volumeSizeLimitMB=64", "-volume.max=8", *ports),
        ]

    def answers(self) -> bool:
        """See the base."""
        try:
            self.files().create_dir(BUCKET)
        except OSError:
            return False
        return True

    def files(self) -> pafs.S3FileSystem:
        """What is in it, for tests."""
        return pafs.S3FileSystem(
            access_key=KEY,
            secret_key=SECRET,
            endpoint_override=self.endpoint,
            region=REGION,
            allow_bucket_creation=True,
            connect_timeout=1,
            request_timeout=10,
        )

    def options(self) -> dict[str, str]:
        """How the package deltalake finds it."""
        return {
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": REGION,
            "AWS_ALLOW_HTTP": "true",
        }
