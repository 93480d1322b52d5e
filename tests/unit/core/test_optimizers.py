"""Whether an optimizer kept the hyperparameters of the trial that its checkpoint is from."""

from __future__ import annotations

import numpy as np
import pytest

from tunekit.core.optimizers import left_by_donor


@pytest.mark.parametrize(
    ("config", "donor", "groups", "expected"),
    [
        ({"lr": 0.1}, {"lr": 0.02}, [{"lr": 0.02}, {"lr": 0.02}], {"lr": (0.1, 0.02)}),
        ({"lr": 0.1}, {"lr": 0.02}, [{"lr": 0.02}, {"lr": 0.1}], {}),
        ({"lr": 0.1}, {"lr": 0.02}, [{"lr": 0.1}], {}),
        ({"lr": 0.1}, {"lr": 0.02}, [{"lr": 0.004}], {}),
        ({"lr": 0.1}, {"lr": 0.1}, [{"lr": 0.1}], {}),
        ({"lr": 0.1}, {}, [{"lr": 0.1}], {}),
        ({"lr": 0.1}, {"lr": 0.02}, [], {}),
        (
            {"opt": {"learning_rate": 1}},
            {"opt": {"learning_rate": 2}},
            [{"lr": 2.0}],
            {"opt/learning_rate": (1, 2)},
        ),
        ({"lr": "auto"}, {"lr": 0.02}, [{"lr": 0.02}], {}),
        ({"lr": 0.02}, {"lr": "auto"}, [{"lr": 0.02}], {}),
        ({"lr": [0.1, 0.2]}, {"lr": [0.2, 0.1]}, [{"lr": 0.1}], {}),
        ({"lr": np.ones(2)}, {"lr": np.zeros(2)}, [{"lr": 0.1}], {}),
        (
            {"lr": 0.1, "layers": [8, 8]},
            {"lr": 0.02, "layers": [8]},
            [{"lr": 0.02}],
            {"lr": (0.1, 0.02)},
        ),
        ({"lr": None}, {"lr": None}, [{"lr": 0.1}], {}),
    ],
)
def test_a_value_counts_if_it_is_the_donors_and_not_the_trials(config, donor, groups, expected):
    assert left_by_donor(config, donor, groups) == expected
