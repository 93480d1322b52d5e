"""Former names go on working, and say what they are called now."""

from __future__ import annotations

import importlib
import pickle
import warnings

import pytest

import tunekit
from tunekit import deprecated
from tunekit.journal import read
from tunekit.testing.journal import check_lives


@pytest.mark.parametrize(
    ("module", "former", "now"),
    [(m, former, now) for m, names in deprecated._FORMER.items() for former, now in names.items()],
)
def test_a_former_name_is_the_new_one_and_warns(module, former, now):
    found = importlib.import_module(module)
    assert former not in vars(found), "it is known in one place"
    with pytest.warns(DeprecationWarning, match=rf"{module}\.{former} is deprecated.*{now} now"):
        assert getattr(found, former) is getattr(found, now)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        getattr(found, now)


@pytest.mark.parametrize("module", deprecated._FORMER)
def test_what_never_was_there_is_an_error_as_ever(module):
    with pytest.raises(AttributeError, match=f"module '{module}' has no attribute 'Whatever'"):
        importlib.import_module(module).Whatever  # noqa: B018


def test_a_pickle_that_names_a_former_class_can_be_opened():
    pickled = b"ctunekit.policies\nWhen\n."  # as protocol 0 writes a class
    with pytest.warns(DeprecationWarning):
        assert pickle.loads(pickled) is tunekit.CheckpointWhen


def test_a_former_value_of_a_setting_is_the_new_one_and_warns():
    with pytest.warns(DeprecationWarning, match="every='asked' is deprecated.*every='requested'"):
        config = tunekit.ValidationConfig(fn=lambda checkpoint: {}, every="asked")
    assert config.every == "requested"


def test_the_former_check_of_a_journal_takes_its_lines(tmp_path):
    with pytest.warns(DeprecationWarning, match="check_journal"):
        assert check_lives(read(tmp_path)).scores == {}


def test_what_tunekit_or_its_tests_do_that_will_stop_working_is_an_error_here():
    with pytest.raises(DeprecationWarning):
        warnings.warn("Ends soon.", DeprecationWarning, stacklevel=1)
    others = {"__name__": "somebody.elses", "__warningregistry__": {}}
    exec("import warnings; warnings.warn('Ends soon.', DeprecationWarning)", others)
