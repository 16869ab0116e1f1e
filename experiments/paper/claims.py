"""The paper's claims, and what the results say about them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from experiments.internals import Array
from experiments.page import errors_of_chance
from experiments.paper.plan import MODELS
from experiments.paper.summary import Group

__all__ = ["FEW", "RIVALS", "Claim", "Paired", "claims", "judge_lower", "space_claims"]

CLOSE = 0.05  # of the full GP's error: within it, an error is "close"
FEW, _MANY = 16, 64  # frequencies: the paper's fewest and most
_SEEN, _NOT_SEEN = "seen in this run", "not seen in this run"


@dataclass(frozen=True)
class Paired:
    """A difference of two models over the runs both have."""

    p: int
    mean: float
    error: float | None
    runs: int

    @classmethod
    def of(cls, p: int, values: Array) -> Paired:
        """From the differences of the runs."""
        error = float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else None
        return cls(p, float(values.mean()), error, len(values))

    @property
    def verdict(self) -> str:
        """Of "lower", "higher", "level"; one run has no standard error, and says so in the text."""
        if self.error is not None and abs(self.mean) <= self.slack:
            return "level"
        return "lower" if self.mean < 0 else "higher"

    @property
    def slack(self) -> float:
        """What the mean must exceed, so that it is not chance; zero for one run."""
        return 0.0 if self.error is None else errors_of_chance(self.runs) * self.error

    def text(self, digits: int = 4) -> str:
        error = "one run" if self.error is None else f"± {self.error:.{digits}f}"
        return f"p = {self.p}: {self.mean:+.{digits}f} ({error})"


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, and what the results say about it.

    Attributes
    ----------
    statement : str
    verdict : str
        "confirmed", "refuted" or "undecided"; of a single run "seen in this run" or "not seen in this run".
    evidence : str
        The numbers.
    topic : str
        The claim whatever the model, for tables.
    model : str
        Key of the model it is about.
    number : str
        What decides it, for tables: means at each p, without standard errors.
    """

    statement: str
    verdict: str
    evidence: str
    topic: str
    model: str
    number: str


# The revised models, each with the SSGP it is compared with.
RIVALS = {"paper": "ssgp", "released": "released_ssgp", "prism1": "ssgp"}
MARGINAL = 0.05  # of the error with few frequencies: less is marginal
NOTICEABLE = 0.1  # of the SSGP's time: more is noticed


def claims(found: Mapping[tuple[str, int | None], Group]) -> list[Claim]:
    """The paper's claims about errors and times, for the two stages as printed, as released, and ours.

    More frequencies than the paper plots are not judged.
    """
    found = {key: group for key, group in found.items() if group.p is None or group.p <= _MANY}
    out = _more_frequencies(found)
    for model, rival in RIVALS.items():
        name = _capital(MODELS[model])
        for score, what in (("rmse", "RMSE"), ("nlpd", "NLPD")):
            against = _differences(found, model, rival, score)
            if against:  # the paper speaks of the RMSE alone
                statement = f"{name}: lower {what} than the {MODELS[rival]} at each p"
                out.append(_comparison(statement, against, f"lower {what} than the SSGP at each p", model))
        if rival != "ssgp" and (against := _differences(found, model, "ssgp", "rmse")):
            statement = f"{name}: lower RMSE than our SSGP at each p"
            out.append(_comparison(statement, against, "lower RMSE than our SSGP at each p", model))
        near = _differences(found, model, "exact", "rmse", relative=True)
        if near:
            texts = [f"p = {each.p}: {100 * each.mean:+.1f}%" + _percent_error(each) for each in near]
            topic, number = f"RMSE at most {CLOSE:.0%} above that of the full GP", _list(each.mean for each in near)
            statement = f"{name}: RMSE close to that of the full GP, at most {CLOSE:.0%} above it"
            out.append(Claim(statement, _is_close(near), "; ".join(texts), topic, model, number))
        out += _few_against_many(found, model, rival) + _shrinking_gap(found, model, rival)
        out += _cost(found, model, rival)
    return out


def _comparison(statement: str, pairs: Sequence[Paired], topic: str, model: str) -> Claim:
    number = ", ".join(f"{each.mean:+.3f}" for each in pairs)
    return Claim(statement, judge_lower(pairs), "; ".join(each.text() for each in pairs), topic, model, number)


def _list(shares: Iterable[float]) -> str:
    return ", ".join(f"{100 * share:+.1f}%" for share in shares)


def space_claims(embedding: Mapping[str, Any] | None) -> list[Claim]:
    """Figures 2 and 3: clusters separate better after re-configuration, and the conditions hold there; of one run."""
    if embedding is None or "failed" in embedding:
        return []
    out, (before, *after) = [], embedding["spaces"]
    models = {"two_stage": "paper", "joint": "prism1"}
    for space in after:
        model = models[space["name"]]
        name = _capital(MODELS[model])
        verdict = _SEEN if space["silhouette"] > before["silhouette"] else _NOT_SEEN
        text = f"silhouette {before['silhouette']:.3f} before, {space['silhouette']:.3f} after"
        topic, number = "K-means clusters separate better", f"{before['silhouette']:.2f} to {space['silhouette']:.2f}"
        out.append(Claim(f"{name}: {topic}", verdict, text, topic, model, number))
        found = space["conditions"]
        verdict = _SEEN if found["holds"] or found["holds_printed"] else _NOT_SEEN
        margins = [check for check in found["checks"] if check["form"] == "sufficient" and check["margin"] is not None]
        worst = min(margins, key=lambda check: float(check["margin"]))
        text = f"printed: {_yes(found['holds_printed'])}, corrected: {_yes(found['holds'])}"
        number = f"{1 / worst['margin']:.2g} times its limit"
        topic, text = "Conditions 1 to 3 hold", f"{text}; {worst['name']} is {number}"
        out.append(Claim(f"{name}: {topic}", verdict, text, topic, model, f"{worst['name']} {number}"))
    return out


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _few_against_many(found: Mapping[tuple[str, int | None], Group], model: str, rival: str) -> list[Claim]:
    """Figure 2a: the revised model with the fewest frequencies against the SSGP with four times as many."""
    few, many = found.get((model, FEW)), found.get((rival, _MANY))
    pair = None if few is None or many is None else _pair(few, many, "rmse")
    if pair is None:
        return []
    statement = f"{_capital(MODELS[model])}, p = {FEW}: lower RMSE than the {MODELS[rival]} with p = {_MANY}"
    topic = f"with p = {FEW} lower RMSE than the SSGP with p = {_MANY}"
    return [_comparison(statement, [pair], topic, model)]


def _shrinking_gap(found: Mapping[tuple[str, int | None], Group], model: str, rival: str) -> list[Claim]:
    """Appendix D: the gap between the two gets smaller with p, from the smallest to the paper's largest."""
    four = [found.get((name, p)) for p in (_MANY, FEW) for name in (rival, model)]
    if any(each is None for each in four):
        return []
    runs = sorted(set.intersection(*(set(each.results) for each in four if each is not None)))
    if not runs:
        return []
    many, many_revised, few, few_revised = (
        np.array([each.results[run]["rmse"] for run in runs]) for each in four if each is not None
    )
    gaps = few - few_revised, many - many_revised
    pair = Paired.of(_MANY, gaps[1] - gaps[0])
    verdict = judge_lower([pair])
    if gaps[0].mean() <= 0:
        verdict = "refuted" if pair.error is not None else _NOT_SEEN  # there is no gap to shrink
    statement = f"{_capital(MODELS[model])}: the gap to the {MODELS[rival]} shrinks from p = {FEW} to {_MANY}"
    change = pair.text().split(": ", 1)[1]
    text = f"gap {gaps[0].mean():+.4f}, then {gaps[1].mean():+.4f}; change {change}"
    first, last = (round(float(gap.mean()), 3) + 0.0 for gap in gaps)  # no negative zero
    number = f"{first:.3f} to {last:.3f}" if gaps[0].mean() > 0 else "there is none"
    topic = f"the gap to the SSGP shrinks from p = {FEW} to {_MANY}"
    return [Claim(statement, verdict, text, topic, model, number)]


def _more_frequencies(found: Mapping[tuple[str, int | None], Group]) -> list[Claim]:
    """Section 4 and appendix D: with more frequencies the SSGP improves marginally, and comes near to the full GP."""
    out = []
    for model in dict.fromkeys(RIVALS.values()):
        few, many, full = (found.get(key) for key in ((model, FEW), (model, _MANY), ("exact", None)))
        pair = None if few is None or many is None else _pair(many, few, "rmse", relative=True)
        if few is None or many is None or pair is None:
            continue
        name, change = _capital(MODELS[model]), f"{100 * pair.mean:+.1f}%" + _percent_error(pair)
        statement = f"{name}: from p = {FEW} to {_MANY} the RMSE falls by less than {MARGINAL:.0%}"
        number = f"{100 * pair.mean:+.1f}%"
        topic = f"from p = {FEW} to {_MANY} the RMSE of the SSGP falls by less than {MARGINAL:.0%}"
        out.append(Claim(statement, _is_marginal(pair), change, topic, model, number))
        ends = [None if full is None else _pair(group, full, "rmse", relative=True) for group in (few, many)]
        if ends[0] is not None and ends[1] is not None:
            statement = f"{name}: from p = {FEW} to {_MANY} the RMSE falls towards that of the full GP"
            number = f"{100 * ends[0].mean:+.1f}%, then {100 * ends[1].mean:+.1f}%"
            topic = f"from p = {FEW} to {_MANY} the SSGP comes nearer to the full GP"
            text = f"{number}; change of the RMSE {change}"
            out.append(Claim(statement, judge_lower([pair]), text, topic, model, number))
    return out


def _is_marginal(pair: Paired) -> str:
    if pair.error is None:
        return _SEEN if pair.mean >= -MARGINAL else _NOT_SEEN
    if pair.mean - pair.slack >= -MARGINAL:
        return "confirmed"
    return "refuted" if pair.mean + pair.slack < -MARGINAL else "undecided"


def _cost(found: Mapping[tuple[str, int | None], Group], model: str, rival: str) -> list[Claim]:
    """Section 3.3.2: the embedding does not noticeably affect the running time."""
    same = {key: group for key, group in found.items() if group.devices == _devices(found, (model, rival), group.p)}
    pairs = _differences(same, model, rival, "fit_seconds", relative=True)
    if not pairs:
        return []
    verdict = "confirmed" if all(pair.mean <= NOTICEABLE for pair in pairs) else "refuted"
    if any(pair.error is None for pair in pairs):
        verdict = _SEEN if verdict == "confirmed" else _NOT_SEEN
    statement = f"{_capital(MODELS[model])}: the embedding adds at most {NOTICEABLE:.0%} to the time of the fit"
    text = "; ".join(f"p = {pair.p}: {1 + pair.mean:.1f} times" for pair in pairs)
    number = ", ".join(f"{1 + pair.mean:.1f}" for pair in pairs) + " times"
    topic = f"the embedding adds at most {NOTICEABLE:.0%} to the time of the fit"
    return [Claim(statement, verdict, text, topic, model, number)]


def _devices(found: Mapping[tuple[str, int | None], Group], models: Sequence[str], p: int | None) -> set[str]:
    """Where the fits of all these models were made."""
    groups = [found[name, p] for name in models if (name, p) in found]
    return set().union(*(group.devices for group in groups))


def _pair(group: Group, rival: Group, score: str, *, relative: bool = False) -> Paired | None:
    """Group minus rival over the runs both have; ``relative``: as a share of the rival's."""
    runs = sorted(group.results.keys() & rival.results.keys())
    ours, theirs = (np.array([each.results[run][score] for run in runs]) for each in (group, rival))
    if not len(runs):
        return None
    return Paired.of(group.p or 0, (ours - theirs) / theirs if relative else ours - theirs)


def _differences(
    found: Mapping[tuple[str, int | None], Group], model: str, other: str, score: str, *, relative: bool = False
) -> list[Paired]:
    """Model minus other at each p, run by run; ``relative``: as a share of the other's."""
    pairs = []
    for (name, p), group in found.items():
        rival = found.get((other, None if other == "exact" else p))
        if name == model and p is not None and rival is not None:
            pairs.append(_pair(group, rival, score, relative=relative))
    return [pair for pair in pairs if pair is not None]


def judge_lower(pairs: Sequence[Paired]) -> str:
    """Whether all differences are below zero beyond chance."""
    verdicts = {pair.verdict for pair in pairs}
    if any(pair.error is None for pair in pairs):
        return _SEEN if verdicts == {"lower"} else _NOT_SEEN
    if verdicts == {"lower"}:
        return "confirmed"
    return "refuted" if "higher" in verdicts else "undecided"


def _is_close(pairs: Sequence[Paired]) -> str:
    if any(pair.error is None for pair in pairs):
        return _SEEN if all(pair.mean <= CLOSE for pair in pairs) else _NOT_SEEN
    if all(pair.mean + pair.slack <= CLOSE for pair in pairs):
        return "confirmed"
    if any(pair.mean - pair.slack > CLOSE for pair in pairs):
        return "refuted"
    return "undecided"


def _percent_error(pair: Paired) -> str:
    return " (one run)" if pair.error is None else f" (± {100 * pair.error:.1f}%)"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
