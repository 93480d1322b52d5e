"""A Ray that is too old or lacks a private name that tunekit uses is refused by that name."""

from __future__ import annotations

import ast
import inspect
import json
import re
import subprocess
import sys
from collections.abc import Iterable
from functools import partial
from itertools import chain
from pathlib import Path

import pytest
from ray import train

from tunekit._ray import compat
from tunekit.distributed import TrainerFactory, TrainerValidation, trials_of
from tunekit.errors import UnsupportedRayError


def test_ray_without_a_name_for_trainers_is_refused_where_a_trainer_is_passed(monkeypatch):
    monkeypatch.setattr(compat, "NEEDED_BY_TRAINERS", {"ray.train.v2": "gone.forever"})
    validate = partial(TrainerValidation, lambda config: {}, train.ScalingConfig(num_workers=1))
    trials = partial(trials_of, TrainerFactory(lambda config: None), None)
    for given in (validate, trials):
        with pytest.raises(UnsupportedRayError, match=r"ray\.train\.v2\.gone\.forever"):
            given()


@pytest.mark.parametrize("version", ["1.13.0", "2.9.3", "2.40.0", "2.55.1"])
def test_older_ray_is_refused_with_the_command_that_installs_another(version):
    with pytest.raises(UnsupportedRayError) as caught:
        compat.check(version)
    assert version in str(caught.value)
    assert f"pip install 'ray[tune,train,data]=={compat.TESTED}'" in str(caught.value)
    assert isinstance(caught.value, ImportError)


def test_newer_ray_without_a_needed_name_is_refused_by_that_name(monkeypatch):
    monkeypatch.setattr(compat, "missing", lambda: ["ray.tune.gone.forever"])
    with pytest.raises(UnsupportedRayError, match=r"ray\.tune\.gone\.forever"):
        compat.check("2.99.0")


@pytest.mark.parametrize("value", ["0", "false"])
def test_ray_whose_validation_is_turned_off_is_refused_by_the_name_of_the_variable(
    monkeypatch, value
):
    """Ray itself seems to lack names then."""
    monkeypatch.setenv("RAY_TRAIN_V2_ENABLED", value)
    with pytest.raises(UnsupportedRayError, match=rf"RAY_TRAIN_V2_ENABLED={value}"):
        compat.check()


@pytest.mark.parametrize("version", ["2.61.0", "2.100.0", "3.0.0.dev0"])
def test_only_a_ray_newer_than_the_tested_one_is_used_with_a_warning(version, caplog):
    compat.check(version)
    (warned,) = caplog.messages
    assert version in warned
    assert f"pip install 'ray[tune,train,data]=={compat.TESTED}'" in warned
    caplog.clear()
    for not_newer in ("2.56.0", "2.59.1", compat.TESTED, f"{compat.TESTED}.post1", "2.60.9"):
        compat.check(not_newer)
    assert caplog.messages == []


def modules_after(code: str) -> set[str]:
    """Run code in a separate process; return the modules that it has imported."""
    code += "\nimport json, sys; print(json.dumps(sorted(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(ran.stdout.splitlines()[-1]))


def test_worker_imports_only_the_modules_that_trials_and_validations_use():
    """Each trial and validation imports them in its own process; only the driver checks Ray."""
    modules = modules_after(
        """
import ray
from ray._private.worker import global_worker
global_worker.set_mode(ray.WORKER_MODE)
import tunekit, tunekit.validating.process
tunekit.report, tunekit.checkpoint_with, tunekit.state_of
tunekit.get_validation_context
"""
    )
    own = {name.split(".")[1] for name in modules if name.startswith("tunekit.")}
    layers = ("_ray", "core", "errors", "journal", "messages", "training", "validating", "version")
    assert own == {*layers}
    of_ray = ("asking", "compat", "functions", "overrides", "worker_errors", "process_state")
    assert {name for name in modules if name.startswith("tunekit._ray.")} == {
        f"tunekit._ray.{name}" for name in of_ray
    }
    assert "ray.train.v2._internal.callbacks.placement_group_callback" not in modules


def test_driver_imports_neither_torch_nor_what_only_other_sweeps_need():
    """Imports take most of the time until the first trial begins."""
    modules = modules_after(
        """
import sys, tunekit
from ray import tune
tunekit.Tuner(
    lambda config: None,
    tune_config=tune.TuneConfig(metric="accuracy", mode="max"),
    validation_config=tunekit.ValidationConfig(fn=lambda checkpoint: {}),
)
"""
    )
    foreign = {name.split(".")[0] for name in modules}
    assert not foreign & {"torch", "jinja2", "optuna", "starlette", "IPython"}
    for name in ("_ray.distributed_trials", "_ray.worker_group", "_ray.workers", "board"):
        assert f"tunekit.{name}" not in modules
    unused = {
        "ray.train.v2.api.data_parallel_trainer",
        "ray.train.v2._internal.execution.controller",
    }
    assert not modules & unused


def test_every_private_name_that_is_imported_from_ray_is_checked():
    checked = set()
    for owner, names in (compat.NEEDED | compat.NEEDED_BY_TRAINERS).items():
        module, _, kind = owner.partition(":")
        checked |= {(module, kind or dotted.split(".")[0]) for dotted in names.split()}
    folder = Path(compat.__file__).parent
    for path in folder.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ray"):
                for alias in node.names:
                    private = "._" in (node.module or "") or alias.name.startswith("_")
                    assert not private or (node.module, alias.name) in checked, (path, alias.name)


def names_in(paths: Iterable[Path]) -> set[str]:
    """All names that modules import, define, read from objects or set, as their code has them."""
    found = set()
    for node in chain.from_iterable(ast.walk(ast.parse(path.read_text())) for path in paths):
        found |= {getattr(node, "attr", ""), getattr(node, "name", ""), getattr(node, "arg", "")}
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return found


def test_checked_private_names_of_the_controller_are_those_that_are_used():
    from ray.tune.execution.tune_controller import TuneController

    topics = ("actor_reuse", "capabilities", "ending_processes", "processes", "processing")
    topics += ("queues", "session", "split_callbacks", "validating_controller", "waker")
    folder = Path(compat.__file__).parent
    own_files = [folder / f"{name}.py" for name in topics]
    used = names_in(
        [*own_files, *(folder.parent / f"driver/{name}.py" for name in ("callback", "restore"))]
    )
    listed = compat.NEEDED["ray.tune.execution.tune_controller:TuneController"].split()
    running = {name.split(".")[0] for name in compat.NEEDED_WHILE_RUNNING.split()}
    assert {*listed, *running} <= used
    own = set(re.findall(r"self\.(_[a-z]\w*)(?:: [^=\n]*)? = ", inspect.getsource(TuneController)))
    private = {name for name in dir(TuneController) if re.match("_[a-z]", name)}
    assert (private & used) - {"_restore_trials"} <= set(listed)
    assert own & names_in(own_files) <= running


def test_controller_without_an_attribute_is_refused_by_the_name_of_the_attribute():
    with pytest.raises(UnsupportedRayError, match=r"TuneController\._actor_cache\b"):
        compat.check_controller(object())


def test_tested_version_of_ray_is_the_one_in_constraints_txt():
    pins = (Path(__file__).parents[2] / "constraints.txt").read_text()
    assert re.findall(r"^ray==(.*)$", pins, re.M) == [compat.TESTED]
