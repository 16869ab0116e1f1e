"""The front of error and time, against its definition."""

from __future__ import annotations

import itertools

from experiments.pareto import dominators, front


def test_dominance_by_hand():
    points = {"fast": (1.0, 0.9), "good": (9.0, 0.1), "middle": (3.0, 0.5), "slow": (9.5, 0.5), "bad": (1.0, 1.0)}
    assert front(points) == ["fast", "middle", "good"]
    assert dominators(points, "slow") == ["middle", "good"]
    assert dominators(points, "bad") == ["fast"]  # as fast, and better
    assert dominators(points, "good") == []


def test_equal_points_do_not_dominate_each_other():
    points = {"a": (1.0, 1.0), "b": (1.0, 1.0), "c": (1.0, 2.0)}
    assert front(points) == ["a", "b"]
    assert dominators(points, "c") == ["a", "b"]


def test_fronts_of_random_points_against_the_definition(rng):
    # Few different values, so that ties happen.
    points = {str(k): tuple(rng.integers(0, 6, 2).astype(float)) for k in range(25)}
    on_front = set(front(points))
    for a, b in itertools.permutations(points, 2):
        strictly = (points[a][0] <= points[b][0] and points[a][1] < points[b][1]) or (
            points[a][0] < points[b][0] and points[a][1] <= points[b][1]
        )
        assert strictly == (a in dominators(points, b))
    assert on_front == {name for name in points if not dominators(points, name)}
    for name in set(points) - on_front:  # every point off the front is dominated by one on it
        assert on_front & set(dominators(points, name))
    errors = [points[name][1] for name in front(points)]
    assert errors == sorted(errors, reverse=True)
