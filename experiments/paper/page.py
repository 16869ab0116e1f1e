"""The page of a study: what was found, whether the paper's claims hold, and how it was made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments.page import (
    Figure,
    Highlight,
    Notice,
    Page,
    Section,
    Table,
    certificate_section,
    errors_of_chance,
    to_svg,
)
from experiments.paper.claims import Claim, claims
from experiments.paper.figures import captioned_figures
from experiments.paper.plan import EXPERIMENTS, MODELS, PaperExperiment, title_of
from experiments.paper.summary import HEADER, Group, best_scores, groups, published_rows, table_rows
from experiments.results import Record, Study

__all__ = ["page"]

_NOT_COMPARABLE = "Simulated data: the paper's published errors, which are of the measured array, are not comparable."


def page(study: Study) -> Page:
    """What is finished of a study, as a page."""
    options, results = study.about["options"], study.records
    about, found = EXPERIMENTS[options["experiment"]], groups(results)
    simulated = options["simulated"]
    sections = [_claims_section(claims(found))]
    sections += [Section("Results", tables=_tables(found, options))] if found else []
    figures = [Figure(to_svg(each.make()), each.caption, each.alt) for each in captioned_figures(study)]
    courses, others = figures[: 2 * bool(found)], figures[2 * bool(found) :]
    if courses:
        sections.append(Section("Error against iteration and time", figures=courses))
    embedding = _find_finished(results, "embedding")
    if others:
        sections.append(Section("Calibration" if embedding is None else "Calibration and embedding", figures=others))
    if embedding is not None:
        sections.append(_conditions_section(embedding))
    certificate = _find_finished(results, "certificate")
    if certificate is not None:
        heading = f"Certificate: SSGP, p = {certificate['p']}, first run{' (simulated data)' if simulated else ''}"
        sections.append(certificate_section(certificate["certificate"], title=heading))
    return Page(
        title=f"The paper's experiment: {title_of(options)}",
        summary=_summary(about, options, found),
        sections=sections,
        made_by=_made_by(study),
        highlights=_highlights(found),
        notice=_notice(study),
    )


def _find_finished(results: Mapping[str, Record], key: str) -> Record | None:
    result = results.get(key)
    return None if result is None or "failed" in result else result


def _summary(about: PaperExperiment, options: Mapping[str, Any], found: Mapping[Any, Group]) -> str:
    some: dict[str, Any] = next((next(iter(group.results.values())) for group in found.values()), {})
    split = f"{some['rows']:,} rows for training and {some['test_rows']:,} held out, " if some else ""
    how = "eight to two at random, another split and another initialisation in every run"
    if options.get("split") == "blocks":
        how = "the last fifth by position held out, another initialisation in every run"
    text = (
        f"{split}{how}. "
        "The full GP, the sparse spectrum GP (SSGP), and the SSGP on re-configured inputs: by the two stages as "
        "printed, a mixture auto-encoder without labels and an SSGP on its reconstruction; as released, where the "
        "authors' code trains both together; and by ours, which does so with the evidence: one model without "
        "neighbours, which the paper does not have, and the default ensemble, with them where they help. Errors are in "
        "units of the training target's standard deviation. Test predictions along a fit are no part of its time."
    )
    if not any(model == "exact" for model, _ in found) and "exact" not in about.models:
        text += " A full GP is out of reach for so many rows."
    learned = [result for group in found.values() for result in group.results.values() if group.model == "exact"]
    if learned and learned[0]["parameters_learned_on"] < learned[0]["rows"]:
        text += (
            f" The full GP learns its parameters on {learned[0]['parameters_learned_on']:,} rows and then takes all "
            "rows into its Cholesky factor."
        )
    if about.streamed:
        text += " The training rows are read from Parquet files, pass by pass."
    if options["simulated"]:
        text += f"\n\n{_NOT_COMPARABLE}"
    elif about.published:
        text += "\n\nThe authors' published errors were read off their plots, so they are known to about 0.005."
    return text


def _notice(study: Study) -> Notice | None:
    options, results, planned = study.about["options"], study.records, study.about["planned"]
    failed = [key for key, each in results.items() if "failed" in each]
    absent = [key for key in planned if key not in results]
    texts = []
    if absent:
        texts.append(f"{len(absent)} of {len(planned)} jobs are not finished; the same command goes on with them.")
    texts += [f"{key} failed: {results[key]['failed']}." for key in failed]
    if options["quick"]:
        texts.append("A quick run: fewer runs, frequencies, steps and rows than the experiment has.")
    if options["simulated"]:
        texts.append("All data on this page are simulated.")
    return Notice(" ".join(texts), "bad" if absent or failed else "note") if texts else None


def _highlights(found: Mapping[tuple[str, int | None], Group]) -> list[Highlight]:
    out = []
    for model in MODELS:
        mine = [group for group in found.values() if group.model == model]
        if mine:
            best = min(mine, key=lambda group: group.mean("rmse"))
            at = "" if best.p is None else f"p = {best.p}, "
            note = f"{at}NLPD {best.mean('nlpd'):.3f}, {best.mean('fit_seconds'):.0f} s"
            out.append(Highlight(f"{best.mean('rmse'):.3f}", f"RMSE: {MODELS[model]}", note))
    return out


def _claims_section(found: list[Claim]) -> Section:
    if not found:
        return Section("The paper's claims", text="Nothing to compare yet.")
    text = (
        "Revised minus SSGP, or relative to the full GP: mean difference, paired over the runs, and standard error. "
        f"A difference counts when it exceeds {errors_of_chance(5):.2f} standard errors of five runs, which chance "
        "does in 5% of cases; a single run has none, so it can only show what it shows. Refuted: worse at one p or "
        "more. More frequencies than the 64 that the paper plots are not judged."
    )
    facts = [(each.statement, f"{each.verdict[:1].upper()}{each.verdict[1:]}. {each.evidence}.") for each in found]
    return Section("The paper's claims", text=text, facts=facts)


def _tables(found: Mapping[tuple[str, int | None], Group], options: Mapping[str, Any]) -> list[Table]:
    out = [
        Table(
            f"Held-out rows, {title_of(options)}",
            HEADER,
            table_rows(found),
            note="Mean over the runs, ± standard error of the mean. Peak memory is that of the whole process.",
            best=best_scores(found),
            groups=[group.model for group in found.values()],
        )
    ]
    beside = published_rows(found, options)
    if beside:
        out.append(Table("RMSE beside the published", ["Model", "here", "published"], beside))
    return out


def _conditions_section(embedding: Mapping[str, Any]) -> Section:
    facts, rows = [], []
    for space in embedding["spaces"]:
        conditions = space["conditions"]
        facts.append((space["title"], conditions["conclusion"]))
        for form in ("printed", "corrected", "sufficient"):
            for check in conditions["checks"]:
                if check["form"] == form:
                    margin = "∞" if check["margin"] is None else f"{check['margin']:.3g}"
                    rows.append([space["title"], form, check["name"], margin, "yes" if check["holds"] else "no"])
    silhouettes = ", ".join(f"{space['title'].lower()} {space['silhouette']:.2f}" for space in embedding["spaces"])
    text = (
        f"For the {embedding['rows']:,} rows pictured, the {embedding['clusters']} clusters of each space, the fitted "
        "length-scales and a kernel error of at most a tenth of the rows. A margin of at least 1 means that the "
        f"condition holds. Mean silhouette of the clusters: {silhouettes}."
    )
    if not embedding["joint_network"]:
        text += " In our recipe the held-out rows voted for the plain SSGP, so there is no network to picture."
    header = ["Space", "Form", "Condition", "Margin", "Holds"]
    table = Table("Conditions 1 to 3", header, rows, groups=[row[0] for row in rows])
    return Section("Do the paper's conditions hold?", text=text, facts=facts, tables=[table])


def _made_by(study: Study) -> dict[str, str]:
    results = study.records
    some = next((result for result in results.values() if "machine" in result), None)
    made = {"command": study.about["command"], "started": study.about["started"]}
    if some is not None:
        machine, versions = some["machine"], some["versions"]
        made["prismgp"] = f"{some['prismgp']}, source {some['source']}" + (
            f", commit {some['commit']}" if some["commit"] else ""
        )
        made["machine"] = f"{machine['processor']}, {machine['cores']} cores, {machine['threads']} threads a job"
        made["versions"] = ", ".join(f"{name} {version}" for name, version in versions.items())
        made["time of all jobs"] = f"{sum(result.get('job_seconds', 0.0) for result in results.values()):,.0f} s"
    return made | {"seeds": "the number of the run, from 0, for split and model"}
