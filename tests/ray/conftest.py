"""What holds after each test on a real Ray."""

from __future__ import annotations

import time

import pytest


@pytest.fixture
def leaves_nothing(ray_cluster):
    """Every CPU is free soon after the test, and no placement group is left."""
    yield
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        groups = ray_cluster.util.placement_group_table().values()
        left = [group for group in groups if group["state"] != "REMOVED"]
        free = ray_cluster.available_resources().get("CPU", 0)
        if not left and free == ray_cluster.cluster_resources()["CPU"]:
            return
        time.sleep(0.2)
    raise AssertionError(f"{free} CPUs are free, and there are {left}")
