"""From results to numbers: means over runs, curves, tables, and whether the paper's claims hold."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from experiments.internals import Array
from experiments.machine import format_bytes
from experiments.page import best_cells, errors_of_chance, markdown_table
from experiments.paper.plan import EXPERIMENTS, MODELS, title_of
from experiments.results import Study

__all__ = [
    "HEADER",
    "Claim",
    "Group",
    "Paired",
    "best_scores",
    "claims",
    "groups",
    "markdown",
    "over_iterations",
    "over_time",
    "published_of",
    "published_rows",
    "space_claims",
    "table_rows",
]

CLOSE = 0.05  # of the full GP's error: within it, an error is "close"
_TIME_POINTS = 48
_FEW, _MANY = 16, 64  # frequencies: the paper's fewest and most
_SEEN, _NOT_SEEN = "seen in this run", "not seen in this run"
SCORES = ("RMSE", "NLPD")
HEADER = ["Model", "p", "Runs", "RMSE", "NLPD", "95% intervals cover", "Fit, s", "Predict, s", "Peak memory"]


@dataclass(frozen=True)
class Group:
    """The results of one model at one p, by run."""

    model: str
    p: int | None
    results: dict[int, dict[str, Any]]

    @property
    def label(self) -> str:
        return MODELS[self.model] if self.p is None else f"{MODELS[self.model]}, p = {self.p}"

    def mean(self, name: str) -> float:
        return float(np.mean([result[name] for result in self.results.values()]))

    def error(self, name: str) -> float | None:
        """Standard error of the mean; None for one run."""
        values = [result[name] for result in self.results.values()]
        return float(np.std(values, ddof=1) / math.sqrt(len(values))) if len(values) > 1 else None


def groups(results: Mapping[str, dict[str, Any]]) -> dict[tuple[str, int | None], Group]:
    """Finished fits by model and p, in the order of tables."""
    found: dict[tuple[str, int | None], Group] = {}
    fits = [result for result in results.values() if result.get("kind") == "fit" and "failed" not in result]
    order = list(MODELS)
    for result in sorted(fits, key=lambda each: (order.index(each["model"]), each["p"] or 0, each["run"])):
        key = (result["model"], result["p"])
        found.setdefault(key, Group(*key, {})).results[result["run"]] = result
    return found


# -- curves ----------------------------------------------------------------------------------------


def course(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The points of a fit; of a network that starts from a fitted SSGP, those from there on."""
    points: list[dict[str, Any]] = result["curve"]
    networks = [k for k, point in enumerate(points) if point["stage"].startswith("member")]
    return points[max(networks[0] - 1, 0) :] if networks else points


def over_iterations(group: Group, score: str) -> tuple[Array, Array, Array, Array]:
    """Iterations counted from 1, mean score, and mean minus and plus one standard deviation over the runs."""
    grid = sorted({point["iteration"] for result in group.results.values() for point in course(result)})
    x = np.array(grid, dtype=np.float64)
    return (x + 1.0, *_band(group, "iteration", score, x))


def over_time(group: Group, score: str) -> tuple[Array, Array, Array, Array]:
    """Seconds, mean score, and mean minus and plus one standard deviation; from where all runs have a score."""
    curves = [course(result) for result in group.results.values()]
    low = max(max(curve[0]["seconds"] for curve in curves), 1e-3)
    high = max(curve[-1]["seconds"] for curve in curves)
    if high <= low:
        x = np.array([high])
    else:
        own = [point["seconds"] for curve in curves for point in curve if low <= point["seconds"] <= high]
        x = np.unique([*own, low, high]) if len(curves) == 1 else np.geomspace(low, high, _TIME_POINTS)
    return (x, *_band(group, "seconds", score, x))


def _band(group: Group, along: str, score: str, x: Array) -> tuple[Array, Array, Array]:
    """Every run holds its last score until it has a new one, and its final score after its end."""
    rows = []
    for result in group.results.values():
        places = np.array([point[along] for point in course(result)], dtype=np.float64)
        values = np.array([point[score] for point in course(result)])
        index = np.searchsorted(places, x * (1 + 1e-12), side="right") - 1
        rows.append(values[np.maximum(index, 0)])
    mean, spread = np.mean(rows, axis=0), np.std(rows, axis=0)
    return mean, mean - spread, mean + spread


# -- tables ----------------------------------------------------------------------------------------


def table_rows(found: Mapping[Any, Group]) -> list[list[str]]:
    """One row for each model and p, under ``HEADER``."""
    rows = []
    for group in found.values():
        rows.append(
            [
                MODELS[group.model],
                "" if group.p is None else str(group.p),
                str(len(group.results)),
                _with_error(group, "rmse"),
                _with_error(group, "nlpd"),
                f"{100 * group.mean('coverage'):.1f}%",
                f"{group.mean('fit_seconds'):.1f}",
                f"{group.mean('predict_seconds'):.2f}",
                format_bytes(int(group.mean("peak_bytes"))),
            ]
        )
    return rows


def best_scores(found: Mapping[Any, Group]) -> frozenset[tuple[int, int]]:
    """Row and column of the least RMSE and NLPD of the table, to the digits shown."""
    scores = {HEADER.index(name): [round(group.mean(name.lower()), 4) for group in found.values()] for name in SCORES}
    return best_cells(scores)


def _with_error(group: Group, name: str) -> str:
    error = group.error(name)
    return f"{group.mean(name):.4f}" + ("" if error is None else f" ± {error:.4f}")


def published_of(options: Mapping[str, Any]) -> tuple[tuple[str, int | None, float], ...]:
    """Errors read off the authors' plots, where the data are theirs: model, p, RMSE."""
    about = EXPERIMENTS[options["experiment"]]
    return () if options["simulated"] or options["rows"] != about.rows else about.published


def published_rows(found: Mapping[Any, Group], options: Mapping[str, Any]) -> list[list[str]]:
    """Our errors beside the published ones: model, ours, theirs."""
    rows: list[list[str]] = []
    for model, p, rmse in published_of(options):
        group = found.get((model, p))
        if group is not None:
            name = MODELS[model] if p is None else f"{MODELS[model]}, p = {p}"
            rows.append([name, _with_error(group, "rmse"), f"{rmse:.3f}"])
    return rows


def markdown(study: Study) -> str:
    """Tables and verdicts for people who read text."""
    options, found = study.about["options"], groups(study.records)
    rows = table_rows(found)
    for row, column in best_scores(found):
        rows[row][column] = f"**{rows[row][column]}**"
    parts = [f"# {title_of(options)}", markdown_table(HEADER, rows)]
    if beside := published_rows(found, options):
        parts.append(markdown_table(["Model", "RMSE here", "published"], beside))
    if verdicts := [*claims(found), *space_claims(study.get("embedding"))]:
        lines = "\n".join(f"- {each.statement}: {each.verdict}. {each.evidence}." for each in verdicts)
        parts += [f"## The paper's claims: {title_of(options)}", lines]
    return "\n\n".join(parts) + "\n"


# -- claims ----------------------------------------------------------------------------------------


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
    """

    statement: str
    verdict: str
    evidence: str


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
            if against:
                statement = f"{name}: lower {what} than the {MODELS[rival]} at each p"
                out.append(Claim(statement, _beats(against), "; ".join(each.text() for each in against)))
        if rival != "ssgp" and (against := _differences(found, model, "ssgp", "rmse")):
            statement = f"{name}: lower RMSE than our SSGP at each p"
            out.append(Claim(statement, _beats(against), "; ".join(each.text() for each in against)))
        near = _differences(found, model, "exact", "rmse", relative=True)
        if near:
            texts = [f"p = {each.p}: {100 * each.mean:+.1f}%" + _percent_error(each) for each in near]
            statement = f"{name}: RMSE close to that of the full GP, at most {CLOSE:.0%} above it"
            out.append(Claim(statement, _is_close(near), "; ".join(texts)))
        out += _few_against_many(found, model, rival) + _shrinking_gap(found, model, rival)
        out += _cost(found, model, rival)
    return out


def space_claims(embedding: Mapping[str, Any] | None) -> list[Claim]:
    """Figures 2 and 3: clusters separate better after re-configuration, and the conditions hold there; of one run."""
    if embedding is None or "failed" in embedding:
        return []
    out, (before, *after) = [], embedding["spaces"]
    names = {"two_stage": MODELS["paper"], "joint": MODELS["prism1"]}
    for space in after:
        name = _capital(names[space["name"]])
        verdict = _SEEN if space["silhouette"] > before["silhouette"] else _NOT_SEEN
        text = f"silhouette {before['silhouette']:.3f} before, {space['silhouette']:.3f} after"
        out.append(Claim(f"{name}: K-means clusters separate better", verdict, text))
        found = space["conditions"]
        verdict = _SEEN if found["holds"] or found["holds_printed"] else _NOT_SEEN
        margins = [check for check in found["checks"] if check["form"] == "sufficient" and check["margin"] is not None]
        worst = min(margins, key=lambda check: float(check["margin"]))
        text = f"printed: {_yes(found['holds_printed'])}, corrected: {_yes(found['holds'])}"
        text += f"; {worst['name']} is {1 / worst['margin']:.2g} times its limit"
        out.append(Claim(f"{name}: Conditions 1 to 3 hold", verdict, text))
    return out


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _few_against_many(found: Mapping[tuple[str, int | None], Group], model: str, rival: str) -> list[Claim]:
    """Figure 2a: the revised model with the fewest frequencies against the SSGP with four times as many."""
    few, many = found.get((model, _FEW)), found.get((rival, _MANY))
    pair = None if few is None or many is None else _paired(few, many, "rmse")
    if pair is None:
        return []
    statement = f"{_capital(MODELS[model])}, p = {_FEW}: lower RMSE than the {MODELS[rival]} with p = {_MANY}"
    return [Claim(statement, _beats([pair]), pair.text())]


def _shrinking_gap(found: Mapping[tuple[str, int | None], Group], model: str, rival: str) -> list[Claim]:
    """Appendix D: the gap between the two gets smaller with p, from the smallest to the paper's largest."""
    four = [found.get((name, p)) for p in (_MANY, _FEW) for name in (rival, model)]
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
    verdict = _beats([pair])
    if gaps[0].mean() <= 0:
        verdict = "refuted" if pair.error is not None else _NOT_SEEN  # there is no gap to shrink
    statement = f"{_capital(MODELS[model])}: the gap to the {MODELS[rival]} shrinks from p = {_FEW} to {_MANY}"
    change = pair.text().split(": ", 1)[1]
    return [Claim(statement, verdict, f"gap {gaps[0].mean():+.4f}, then {gaps[1].mean():+.4f}; change {change}")]


def _more_frequencies(found: Mapping[tuple[str, int | None], Group]) -> list[Claim]:
    """Section 4 and appendix D: with more frequencies the SSGP improves marginally, and comes near to the full GP."""
    out = []
    for model in dict.fromkeys(RIVALS.values()):
        few, many, full = (found.get(key) for key in ((model, _FEW), (model, _MANY), ("exact", None)))
        pair = None if few is None or many is None else _paired(many, few, "rmse", relative=True)
        if few is None or many is None or pair is None:
            continue
        name, change = _capital(MODELS[model]), f"{100 * pair.mean:+.1f}%" + _percent_error(pair)
        statement = f"{name}: from p = {_FEW} to {_MANY} the RMSE falls by less than {MARGINAL:.0%}"
        out.append(Claim(statement, _is_marginal(pair), change))
        ends = [None if full is None else _paired(group, full, "rmse", relative=True) for group in (few, many)]
        if ends[0] is not None and ends[1] is not None:
            statement = f"{name}: from p = {_FEW} to {_MANY} the RMSE falls towards that of the full GP"
            text = f"{100 * ends[0].mean:+.1f}%, then {100 * ends[1].mean:+.1f}%; change of the RMSE {change}"
            out.append(Claim(statement, _beats([pair]), text))
    return out


def _is_marginal(pair: Paired) -> str:
    if pair.error is None:
        return _SEEN if pair.mean >= -MARGINAL else _NOT_SEEN
    if pair.mean - pair.slack >= -MARGINAL:
        return "confirmed"
    return "refuted" if pair.mean + pair.slack < -MARGINAL else "undecided"


def _cost(found: Mapping[tuple[str, int | None], Group], model: str, rival: str) -> list[Claim]:
    """Section 3.3.2: the embedding does not noticeably affect the running time."""
    pairs = _differences(found, model, rival, "fit_seconds", relative=True)
    if not pairs:
        return []
    verdict = "confirmed" if all(pair.mean <= NOTICEABLE for pair in pairs) else "refuted"
    if any(pair.error is None for pair in pairs):
        verdict = _SEEN if verdict == "confirmed" else _NOT_SEEN
    statement = f"{_capital(MODELS[model])}: the embedding adds at most {NOTICEABLE:.0%} to the time of the fit"
    return [Claim(statement, verdict, "; ".join(f"p = {pair.p}: {1 + pair.mean:.1f} times" for pair in pairs))]


def _paired(group: Group, rival: Group, score: str, *, relative: bool = False) -> Paired | None:
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
            pairs.append(_paired(group, rival, score, relative=relative))
    return [pair for pair in pairs if pair is not None]


def _beats(pairs: Sequence[Paired]) -> str:
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
