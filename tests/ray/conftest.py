"""An object store for the tests that need one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.s3 import S3Server


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """One server for each process that runs tests; each test makes buckets of its own."""
    with S3Server() as server:
        yield server


@pytest.fixture
def s3(s3_server, monkeypatch) -> S3Server:
    """The server, whose URIs this process can use."""
    for name, value in s3_server.environment().items():
        monkeypatch.setenv(name, value)
    return s3_server
