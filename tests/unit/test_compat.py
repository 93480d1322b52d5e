from __future__ import annotations

import pytest
import ray

from tunekit import UnsupportedRayError
from tunekit._ray import compat


def test_the_installed_ray_has_all_that_is_needed():
    assert compat.missing() == []
    compat.check()


@pytest.mark.parametrize("version", ["1.13.0", "2.9.3", "2.40.0", "2.55.1"])
def test_an_older_ray_is_refused_with_what_to_install(version):
    with pytest.raises(UnsupportedRayError) as caught:
        compat.check(version)
    assert f"Ray {version} is installed" in str(caught.value)
    assert "pip install 'ray[tune,train,data]==" in str(caught.value)
    assert isinstance(caught.value, ImportError)


def test_a_newer_ray_that_lacks_a_name_is_refused_by_that_name(monkeypatch):
    monkeypatch.setattr(compat, "NEEDED", (("ray.tune", "gone.forever"),))
    monkeypatch.setattr(compat, "missing", lambda: ["ray.tune.gone.forever"])
    with pytest.raises(UnsupportedRayError, match=r"lacks ray\.tune\.gone\.forever"):
        compat.check("2.99.0")


def test_every_private_name_that_is_imported_is_checked_at_import():
    import ast
    from pathlib import Path

    checked = {(module, dotted.split(".")[0]) for module, dotted in compat.NEEDED}
    folder = Path(compat.__file__).parent
    for path in folder.glob("*.py"):
        if path.name == "local.py":  # for tests only
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ray"):
                for alias in node.names:
                    private = "._" in (node.module or "") or alias.name.startswith("_")
                    assert not private or (node.module, alias.name) in checked, (path, alias.name)


def test_the_tests_run_with_the_version_they_name():
    assert ray.__version__ == compat.TESTED
