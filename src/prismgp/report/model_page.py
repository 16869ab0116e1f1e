"""The page about a model on given rows, with the words and figures around the numbers of `examine`; certificates."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from prismgp._system import format_amount
from prismgp._types import AnyArray
from prismgp._version import __version__
from prismgp.certificates import MEMBER_HEADER, Certificate, certificate_lines, member_rows
from prismgp.exceptions import DataError
from prismgp.plots import PartialDependenceDisplay
from prismgp.report.content import Figure, Highlight, Notice, Page, Section, Table
from prismgp.report.examine import CERTIFIED_ROWS, Examination, Measure, format_cell
from prismgp.report.render import draw_svg

__all__ = ["certificate_section", "model_page"]

_PANEL = (4.1, 3.2)  # inches; as wide as a phone
_SHOWN_INPUTS = 3  # columns in lists of rows
_figure = partial(Figure, wide=False, themed=True)  # may stand beside the next one


def model_page(
    found: Examination,
    *,
    model_name: str,
    data_name: str,
    rows_note: str = "",
    seen_in_fit: bool = False,
    partly_seen: bool = False,
    certificate_note: str = "",
    made_by: dict[str, str] | None = None,
    extra: Section | None = None,
) -> Page:
    """The page about a model.

    Parameters
    ----------
    found : Examination
    model_name, data_name : str
        Names of the files.
    rows_note : str
        Which rows of the table these are.
    seen_in_fit : bool
        Whether the model was fitted on these rows, so that all scores are too good.
    partly_seen : bool
        Whether there are others among them.
    certificate_note : str
        Why there is no certificate, where there is none.
    made_by : dict
        Further facts about how the page was made.
    extra : Section, optional
        Before all others.

    Returns
    -------
    Page
    """
    status = found.estimator.fit_status_
    name = type(found.estimator).__name__
    n, width = len(found.y), len(found.table.names)
    summary = f"{name} predicts {found.target} from {width:,} columns; here on {n:,} rows of {data_name}. {rows_note}"
    notice = None
    if seen_in_fit:
        notice = Notice(
            "Errors are smaller here than on new rows, and the intervals seem to cover more. Report on rows that were "
            "kept out of the fit: prismgp fit --holdout 0.2, and the same option here.",
            "bad",
            f"The model was fitted on {'many of ' if partly_seen else ''}these rows.",
        )
    sections = [
        *([] if extra is None else [extra]),
        _accuracy(found),
        _calibration(found),
        _where_worst(found),
        _inputs(found),
        _uncertain_rows(found),
        _certificate(found.certificate, certificate_note),
    ]
    if found.history is not None:
        sections.append(_training(found, str(status.get("message") or "")))
    facts = {"model": f"{model_name}, {name}, {found.estimator.model_.n_rows:,} rows in the fit", "rows": data_name}
    return Page(
        title=f"How well {name} predicts {found.target}",
        summary=summary.strip(),
        sections=sections,
        made_by={**facts, **(made_by or {}), "prismgp": __version__},
        highlights=_highlights(found),
        notice=notice,
    )


def _highlights(found: Examination) -> list[Highlight]:
    rmse, _, explained, _, cover, width = found.measures
    return [
        Highlight(format_amount(rmse.value), "RMSE", f"always the mean: {format_amount(rmse.constant)}"),
        Highlight(f"{explained.value:.1%}", "of the variance explained", "R², of the predicted means"),
        Highlight(f"{cover.value:.1%}", "of the 95% intervals hold the truth", f"± {cover.error:.1%} by chance"),
        Highlight(f"± {format_amount(width.value / 2)}", "half width of 95% intervals", "mean over the rows"),
    ]


def certificate_section(certificate: Mapping[str, Any], *, title: str = "") -> Section:
    """What a certificate proves, in the sentences that ``prismgp certify`` prints.

    Parameters
    ----------
    certificate : mapping
        `Certificate.to_dict`, also after a way through JSON.
    title : str
        The heading; empty: the model's name.

    Returns
    -------
    Section
        Headed by the distance that is proved, with which probability and from what; where the certificate does not
        hold, by the reason.

    Raises
    ------
    DataError
        The mapping is not what `Certificate.to_dict` gives.
    """
    try:
        found = Certificate.from_dict(certificate)
        lines = certificate_lines(found)
        members = member_rows(found)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise DataError(f"not a certificate: {what}; store what Certificate.to_dict() gives") from error
    tables = []
    if members:
        rows = [[name, *cells] for name, cells in members]
        note = "Each against its own exact GP; mean and std in the target's units."
        tables.append(Table("Members of the ensemble", ["Member", *MEMBER_HEADER], rows, note=note))
    facts = [("Training rows", f"{found.rows:,}"), *lines]
    if found.holds:
        del facts[1]  # the notice says what it is compared with
        facts += [("Assumption", text) for text in found.assumptions]
    return Section(title or f"Certificate: {found.name}", tables=tables, notice=_verdict(found), facts=facts)


# -- sections --------------------------------------------------------------------------------------


def _accuracy(found: Examination) -> Section:
    def cells(each: Measure) -> list[str]:
        show = {"NLPD": "{:.3f}".format, "95% intervals cover": "{:.1%}".format, "Explained variance": "{:.1%}".format}
        text = show.get(each.name, format_amount)
        return [each.name, f"{text(each.value)} ± {text(each.error)}", text(each.constant)]

    header = ["Measure", "This model", "Constant"]
    notes = (
        "Of the predicted means alone.",
        "Of the whole predictive distribution. NLPD is the mean negative log predictive density; lower is better.",
    )
    tables = [
        Table(caption, header, [cells(each) for each in found.measures if each.with_std == with_std], note=note)
        for caption, with_std, note in (
            ("Without error bars", False, notes[0]),
            ("With error bars", True, notes[1]),
        )
    ]
    sure = Table(
        "If only the rows with the smallest predicted std are kept",
        ["Rows kept", "RMSE"],
        [[f"{share:.0%}", format_amount(value)] for share, value in found.by_certainty],
        note="A model that knows where it errs has a smaller error on the rows that it is sure of.",
    )
    text = (
        f"In the units of {found.target}. The constant always predicts the mean and the standard deviation of these "
        "rows. ± is the standard error: how much the number would change with other rows like these."
    )
    return Section("Accuracy", text, tables=[*tables, sure])


def _calibration(found: Examination) -> Section:
    curve = found.calibration
    chosen = [int(np.argmin(np.abs(curve.levels - level))) for level in (0.5, 0.8, 0.9, 0.95, 0.99)]
    rows = [
        [
            f"{curve.levels[k]:.0%}",
            f"{curve.coverage[k]:.1%}",
            f"{curve.lower[k]:.1%} to {curve.upper[k]:.1%}",
        ]
        for k in chosen
    ]
    note = "By chance: where the share would be, 19 times in 20, if the intervals were right and the rows independent."
    figures = [
        _figure(
            draw_svg(curve.plot, (4.1, 3.9)),
            "Share of the observations inside central intervals, against what the intervals promise. On the diagonal "
            "is calibrated; below it the intervals are too narrow.",
            f"Calibration curve; mean distance from the diagonal {curve.error:.1%}.",
        ),
        _figure(
            draw_svg(found.residuals.plot, (4.1, 3.9)),
            "Observed minus predicted, against the predicted standard deviation. The orange line is the root mean "
            "square of the errors of rows with a similar std; it should follow the grey one.",
            "Residuals in a widening band.",
        ),
    ]
    table = Table("Coverage of central intervals", ["Promised", "Observed", "By chance"], rows, note=note)
    text = f"On average over all levels, coverage is {_percent(curve.error)} away from what is promised."
    return Section("Calibration", text, tables=[table], figures=figures)


def _where_worst(found: Examination) -> Section:
    overall = found.measures[0].value
    rows = [
        [
            group.column,
            group.cells,
            f"{group.rows:,}",
            format_amount(group.rmse),
            f"{group.rmse / overall:.0%}" if overall else "-",
            format_amount(group.bias),
            f"{group.coverage:.1%}",
        ]
        for group in found.groups
    ]
    tables = []
    if rows:
        header = ["Column", "Cells", "Rows", "RMSE", "of that of all", "Mean error", "95% intervals cover"]
        note = (
            f"The worst of {found.n_groups:,} groups: fifths of every column of numbers, and frequent categories. Mean "
            "error is observed minus predicted. Some group is always worst, by chance too; look for low coverage."
        )
        tables.append(Table("Groups of rows with the largest error", header, rows, note=note))
    tables.append(_list_rows(found, found.surprising, "Rows with the largest error, in units of their predicted std"))
    text = f"The RMSE of all rows is {format_amount(overall)}."
    return Section("Where it is worst", text, tables=tables)


def _inputs(found: Examination) -> Section:
    seen = found.relevance
    rows = [
        [seen.names[k], f"{seen.nlpd_increase[k].mean():.3f}", format_amount(float(seen.rmse_increase[k].mean()))]
        for k in found.relevant[:20]
    ]
    note = f"Means of {seen.nlpd_increase.shape[1]} permutations of {seen.n_rows:,} rows."
    header = ["Column", "Increase of the NLPD", "Increase of the RMSE"]
    bars = min(len(seen.names), 20)
    figures = [
        _figure(
            draw_svg(seen.plot, (4.1, 1.1 + 0.3 * bars)),
            "What permuting a column costs; the lines are the range of the permutations.",
            f"Bars; the longest is {seen.names[found.relevant[0]]}.",
        )
    ]
    shown = found.dependence
    low = min(float((curve.mean - 1.96 * curve.std).min()) for curve in shown.curves)
    high = max(float((curve.mean + 1.96 * curve.std).max()) for curve in shown.curves)
    for curve in shown.curves:
        one = PartialDependenceDisplay([curve], coverage=shown.coverage, target=f"mean {found.target}")

        def draw(axes: Any, one: PartialDependenceDisplay = one) -> None:
            one.plot(ax=axes)
            room = 0.05 * (high - low) or 1.0
            axes.set_ylim(low - room, high + room)

        what = "" if curve.ordered else " Categories: the most frequent first."
        figures.append(
            _figure(
                draw_svg(draw, _PANEL),
                f"Mean prediction as {curve.name} varies, with 95% bands of the posterior.{what}",
                f"Partial dependence on {curve.name}.",
            )
        )
    text = (
        "A column matters if predictions become worse when its cells are permuted between rows. Two columns that say "
        "the same can each be permuted at little cost. The curves show the mean prediction when one column is set to a "
        "value in all rows and the others stay as they are; the bands show what the model does not know about these "
        "curves. All have the same vertical scale."
    )
    return Section(
        "Inputs that matter", text, tables=[Table("Relevance of the columns", header, rows, note=note)], figures=figures
    )


def _uncertain_rows(found: Examination) -> Section:
    ratio = float(np.max(found.std) / np.median(found.std))
    text = (
        f"The median predicted std is {format_amount(float(np.median(found.std)))}; the largest is {ratio:.1f} times "
        "as large. Part of it is noise, which more rows do not make smaller; prismgp suggest finds the rows to measure "
        "next."
    )
    return Section(
        "Most uncertain rows", text, tables=[_list_rows(found, found.uncertain, "Rows with the largest predicted std")]
    )


def _list_rows(found: Examination, rows: AnyArray, caption: str) -> Table:
    columns = found.relevant[:_SHOWN_INPUTS]
    header = ["Row", "Observed", "Predicted", "95% interval", "Error / std"]
    header += [found.table.names[k] for k in columns]
    cells = []
    for row in rows:
        error = (found.y[row] - found.mean[row]) / found.std[row]
        interval = f"{format_amount(found.lower[row])} to {format_amount(found.upper[row])}"
        own = [format_cell(found.table.cells(k).iloc[row]) for k in columns]
        numbers = [f"{found.numbers[row]:,}", format_amount(found.y[row]), format_amount(found.mean[row])]
        cells.append([*numbers, interval, f"{error:+.1f}", *own])
    note = "Row numbers are those of the table; the first is 1. The last columns are the inputs that matter most."
    return Table(caption, header, cells, note=note, numeric=frozenset({0, 1, 2, 3, 4}))


def _certificate(certificate: Certificate | None, note: str) -> Section:
    title = "Distance from the exact GP"
    text = (
        "The model approximates an exact Gaussian process that is too costly to compute. The certificate bounds the "
        "distance between the two, in units of the noise. It is a measure, and no verdict on the predictions: these "
        "are judged by held-out rows, above, and a model may well be better than its exact GP."
    )
    if certificate is None:
        return Section(title, f"{text}\n\n{note}")
    section = certificate_section(certificate.to_dict(), title=title)
    tables = [*_distances(certificate), *section.tables]
    limit = f"Computed quickly, at up to {CERTIFIED_ROWS} of the rows; prismgp certify can spend more and bound closer."
    return Section(title, f"{text}\n\n{limit}", tables=tables, notice=section.notice, facts=section.facts)


def _distances(certificate: Certificate) -> list[Table]:
    """Quantiles of the distances, in units of the noise."""
    if not certificate.holds or certificate.noise_variance is None:
        return []
    rows = []
    for what, bound in (("mean", certificate.mean), ("std", certificate.std)):
        if bound is None:
            continue
        values = certificate.noise_shares(bound, (0.5, 0.95, 1.0))
        rows.append(
            [f"Predicted {what}", *("unknown" if not math.isfinite(each) else _percent(each) for each in values)]
        )
    header = ["Distance at most", "at half of the rows", "at 95%", "at all"]
    return [Table("Certified distance from the exact GP, in % of the noise std", header, rows)]


def _training(found: Examination, message: str) -> Section:
    history = found.history
    assert history is not None
    figure = _figure(
        draw_svg(history.plot, _PANEL),
        f"{history.y_name[0].upper()}{history.y_name[1:]} in the course of the training.",
        f"{len(history.curves)} curves.",
    )
    text = f"{message[0].upper()}{message[1:]}." if message else ""
    return Section("Course of the training", text, figures=[figure])


# -- certificates ----------------------------------------------------------------------------------


def _verdict(found: Certificate) -> Notice:
    if not found.holds:
        reason = found.reason.strip().rstrip(".") or "no reason is given"
        text = f"{reason[0].upper()}{reason[1:]}. Nothing is certified, however close the model may be."
        return Notice(text, "bad", "This certificate does not hold.")
    odds = "without any randomness" if found.probability == 1.0 else f"with probability {found.probability:.3g}"
    text = f"All bounds together hold {odds}. Compared with: {found.statement}"
    return Notice(text, "note", _measure(found))


def _measure(found: Certificate) -> str:
    """How far the means are apart, in one sentence: a distance, which no threshold makes good or bad."""
    if found.mean is None or found.noise_variance is None:
        return "How close the model is to the exact GP."
    half, most = found.noise_shares(found.mean, (0.5, 0.95))
    if not np.isfinite(half):
        return "Too little was computed to bound the distance from the exact GP."
    count = np.size(found.mean.lower)
    points = "the test point" if count == 1 else f"half of the {count:,} test points"
    far = f", within {_amount(most)} it at 95%" if count > 1 and np.isfinite(most) else ""
    return f"The exact GP's mean is within {_amount(half)} the noise std of this model's at {points}{far}."


def _amount(share: float) -> str:
    return f"{_percent(share)} of" if share < 0.995 else f"{share:.2g} times"


def _percent(share: float) -> str:
    """A share in percent, with two digits."""
    return f"{100 * share:.2g}%" if share < 0.995 else f"{100 * share:,.0f}%"
