"""What runs on GitHub: the same scripts, and the same versions as everywhere else."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
import yaml

from tunekit._ray import compat

ROOT = Path(__file__).parents[2]
WORKFLOWS = {path.stem: path for path in sorted((ROOT / ".github/workflows").glob("*.yml"))}


def script(name: str) -> Any:
    spec = spec_from_file_location(name, ROOT / f"scripts/{name}.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def versions() -> Any:
    return script("versions")


@pytest.fixture(scope="module")
def conformance() -> Any:
    return script("conformance")


@pytest.fixture(scope="module")
def release() -> Any:
    return script("release")


def jobs(name: str) -> dict[str, Any]:
    return yaml.safe_load(WORKFLOWS[name].read_text())["jobs"]


# Versions -------------------------------------------------------------------------------------


def test_the_workflow_runs_every_cell_once(versions):
    matrix = jobs("versions")["cell"]["strategy"]["matrix"]
    run = [
        versions.Cell(python, ray, others)
        for python in matrix["python"]
        for ray in matrix["ray"]
        for others in matrix["others"]
    ]
    run += [versions.Cell(**cell) for cell in matrix["include"]]
    assert sorted(run, key=str) == sorted(versions.cells(), key=str)


def test_the_wheel_is_tested_with_every_python(versions):
    assert jobs("tests")["wheel"]["strategy"]["matrix"]["python"] == versions.PYTHONS


def test_cells_span_the_versions_that_tunekit_names(versions):
    assert versions.RAYS[0].startswith(".".join(map(str, compat.OLDEST)))
    assert versions.RAYS[-1] == compat.TESTED
    minor = [int(ray.split(".")[1]) for ray in versions.RAYS]
    assert minor == list(range(minor[0], minor[-1] + 1)), "none is left out"
    (asked,) = re.findall(r">=(\d+\.\d+)", versions.SETUP["options"]["python_requires"])
    assert versions.PYTHONS[0] == asked


def test_what_the_oldest_cell_installs_is_pinned_to_the_lower_bounds(versions):
    oldest = versions.requirements(versions.Cell("3.10", "2.56.0", "oldest"))
    packages = [line for line in oldest if line not in (*versions.TOOLS, *versions.OLDEST_ALSO)]
    assert "msgspec==0.19" in packages
    assert [line for line in packages if "==" not in line] == [], "these have no lower bound"


def test_tests_that_the_cells_select_are_there(versions):
    for name in versions.SELECTED:
        path, _, test = name.partition("::")
        assert (ROOT / path).exists(), name
        if test:
            assert f"def {test.partition('[')[0]}(" in (ROOT / path).read_text(), name


def test_the_page_of_versions_has_every_cell(versions):
    page = (ROOT / "docs/versions.md").read_text()
    assert set(versions.read(page)) == {cell.name for cell in versions.cells()}
    assert versions.written(page, {}) == page


def test_an_outcome_takes_the_place_of_the_former_one_and_leaves_the_others(versions):
    page = "Before.\n\n" + "\n".join(versions.heading()) + "\n\nAfter.\n"
    first, second = versions.cells()[:2]
    page = versions.written(page, {first.name: "failed (tests)", second.name: "passed"})
    page = versions.written(page, {first.name: "passed, 2026-11-23"})
    assert versions.read(page)[first.name] == "passed, 2026-11-23"
    assert versions.read(page)[second.name] == "passed"
    assert page.startswith("Before.\n\n|") and page.endswith("|\n\nAfter.\n")


# Ray's own tests ------------------------------------------------------------------------------


def test_what_ends_differently_is_told_and_counts_unless_it_has_a_reason(conformance, monkeypatch):
    stock = {"a": "passed", "b": "passed", "c": "failed", "d": "skipped"}
    ours = {"a": "passed", "b": "failed", "c": "failed", "d": "skipped"}
    results = [conformance.Compared("tune/tests/test_tuner.py", {"stock": stock, "tunekit": ours})]
    assert conformance.table(results)[-1] == "| all | 2 | 1 | 1 | 1 | 1 |"
    lines, unknown = conformance.differences(results)
    assert lines == ["- `b`: passed with Ray's, failed with tunekit's. ?"]
    assert unknown == 1
    monkeypatch.setitem(conformance.KNOWN, "b", "Meant so.")
    lines, unknown = conformance.differences(results)
    assert lines == ["- `b`: passed with Ray's, failed with tunekit's. Meant so."]
    assert unknown == 0


def test_a_test_of_ray_s_gets_the_environment_of_its_build(conformance, tmp_path):
    build = tmp_path / "python/ray/tune/BUILD.bazel"
    build.parent.mkdir(parents=True)
    rule = """py_test(
    name = "{}",
    env = {{"RAY_TRAIN_V2_ENABLED": "{}"}},
)
"""
    build.write_text(rule.format("test_api", 1) + rule.format("test_api_migrations", 0))
    for name, wanted in (("test_api", "1"), ("test_api_migrations", "0")):
        found = conformance.environment_of(f"tune/tests/{name}.py", tmp_path)
        assert found == {"RAY_TRAIN_V2_ENABLED": wanted}
    assert conformance.environment_of("tune/tests/test_tuner.py", tmp_path) == {}


# Workflows ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WORKFLOWS)
def test_workflows_run_scripts_that_are_there_and_end(name):
    for job in jobs(name).values():
        assert job["timeout-minutes"] > 0
        for step in job["steps"]:
            for named in re.findall(r"\bscripts/[\w.-]+", step.get("run", "")):
                assert (ROOT / named).exists(), named


# Releases -------------------------------------------------------------------------------------


def test_a_release_has_the_package_s_version_and_its_part_of_the_changelog(release, tmp_path):
    version = release.version_of(ROOT)
    with pytest.raises(ValueError, match=rf"The tag is v9\.9\.9.*tag v{version}"):
        release.main("v9.9.9")
    changelog = (
        "# Changelog\n\n## 0.2.0 (2027-01-05)\n\n- New.\n\n## 0.1.0 (2026-12-01)\n\n- Old.\n"
    )
    assert release.notes(changelog, "0.2.0") == "- New."
    assert release.notes(changelog, "0.1.0") == "- Old."
    with pytest.raises(ValueError, match=r"has no section '## 0\.2'"):
        release.notes(changelog, "0.2")
    with pytest.raises(ValueError, match="add the date in brackets"):
        release.notes("## 0.1.0 (unreleased)\n\n- New.\n", "0.1.0")


def test_what_is_new_goes_from_fragments_into_the_changelog(release, tmp_path):
    for name in (
        "changelog.d",
        "tunekit/version.py",
        "setup.cfg",
        "towncrier.toml",
        "CHANGELOG.md",
    ):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
        (tmp_path / name).parent.mkdir(exist_ok=True)
        copy(ROOT / name, tmp_path / name)
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n<!-- releases -->\n\n## 0.0.9 (day)\n")
    version = release.version_of(ROOT)
    left = set(release.fragments(ROOT))
    for name, text in {"b.added": "A.", "a.added": "B.", "c.fixed": "`x`."}.items():
        (tmp_path / f"changelog.d/{name}.md").write_text(f"{text}\n")
    with pytest.raises(ValueError, match=r"a\.added\.md.*c\.fixed\.md.*towncrier build"):
        release.main(f"v{version}", tmp_path)
    for name in left:
        (tmp_path / "changelog.d" / name).unlink()
    command = [sys.executable, "-m", "towncrier", "build", "--yes", "--version", version]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    told = release.main(f"v{version}", tmp_path)
    assert told == "### Added\n\n- B.\n- A.\n\n### Fixed\n\n- `x`."
    assert (tmp_path / "CHANGELOG.md").read_text().endswith("- `x`.\n\n## 0.0.9 (day)\n")
    assert not release.fragments(tmp_path)
