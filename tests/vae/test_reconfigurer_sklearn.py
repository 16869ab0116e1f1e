"""The Reconfigurer as a scikit-learn transformer."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

from prismgp import Reconfigurer


@pytest.mark.slow
@pytest.mark.usefixtures("small_defaults")
@parametrize_with_checks([Reconfigurer(), Reconfigurer(output="reconstruction")])
def test_estimator_checks(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def rows():
    return np.random.default_rng(0).normal(size=(60, 3))


def test_pipeline_search_clone_and_pickle(rows):
    model = make_pipeline(Reconfigurer(2, 2, max_steps=3, random_state=0), Ridge())
    search = GridSearchCV(model, {"reconfigurer__output": ["latent", "reconstruction"]}, cv=2).fit(rows, rows[:, 0])
    encoder = search.best_estimator_[0]
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(encoder)).transform(rows), encoder.transform(rows))
    assert not hasattr(clone(encoder), "history_")


def test_progress_bar_only_when_asked(rows, capsys):
    Reconfigurer(2, 2, max_steps=3).fit(rows)
    silent = capsys.readouterr()
    assert silent.out + silent.err == ""
    Reconfigurer(2, 2, max_steps=3, verbose=1).fit(rows)
    shown = capsys.readouterr().err
    assert "Reconfigurer" in shown
    assert "objective per row" in shown
    assert "3/3" in shown


def test_global_random_state_is_untouched(rows):
    np.random.seed(3)  # noqa: NPY002 - the global state is what this test is about
    state, torch_state = np.random.get_state()[1].copy(), torch.get_rng_state()  # noqa: NPY002
    Reconfigurer(2, 2, max_steps=3, random_state=0).fit(rows).transform(rows)
    np.testing.assert_array_equal(np.random.get_state()[1], state)  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), torch_state)
