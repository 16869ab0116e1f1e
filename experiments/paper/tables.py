"""The paper's experiments as Markdown: a study with its verdicts, and one table of all claims."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from experiments.page import markdown_table
from experiments.paper.claims import FEW, RIVALS, Claim, Paired, claims, judge_lower, space_claims
from experiments.paper.plan import title_of
from experiments.paper.summary import HEADER, best_scores, groups, published_rows, table_rows
from experiments.results import Study

__all__ = ["all_claims", "markdown"]

# Studies of the table of all claims, with the figures of the paper that they repeat.
STUDIES = {
    "abalone": "abalone (Figure 1)",
    "abalone-blocks-coded": "abalone, split by position, sex as one number",
    "gas10k-simulated": "gas array, 10,000 rows (Figure 4 a to c)",
    "gas10k-simulated-blocks": "gas array, 10,000 rows, split by position",
    "gas500k-simulated": "gas array, 500,000 rows (Figures 2 a and 4 d to f)",
    "gas4m-simulated": "gas array, 4,000,000 rows (Figures 2 a and 4 g to i)",
}
COLUMNS = ("paper", "released", "prism1")
_OF_SSGP = {"ssgp": "prism1", "released_ssgp": "released"}  # in whose column a claim about an SSGP stands


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


def all_claims(folder: Path) -> str:
    """One table: claims by data set, with the verdict and the number for the three revised models."""
    rows = [row for name, title in STUDIES.items() for row in _rows_of(folder, name, title)]
    rows += [*_linear_rows(folder), *_space_rows(folder)]
    header = ["claim", "the two stages as printed", "as released", "ours"]
    return markdown_table(header, rows) + "\n"


def _rows_of(folder: Path, name: str, title: str) -> Iterator[list[str]]:
    if not (folder / f"{name}.jsonl").is_file():
        return
    study = Study.read(folder, name)
    found = [*claims(groups(study.records)), *space_claims(study.get("embedding"))]
    yield [f"**{title}**", "", "", ""]
    for topic in dict.fromkeys(claim.topic for claim in found if "NLPD" not in claim.topic):  # no claim of the paper
        mine = {_OF_SSGP.get(claim.model, claim.model): claim for claim in found if claim.topic == topic}
        yield [topic, *(_cell(mine.get(model)) for model in COLUMNS)]


def _cell(claim: Claim | None) -> str:
    return "-" if claim is None else f"{claim.verdict.removesuffix(' in this run')}, {claim.number}"


def _linear_rows(folder: Path) -> Iterator[list[str]]:
    """Section 3.3.2: what the embedding takes, the seconds beyond the SSGP's, is linear in the rows."""
    studies = [Study(folder, name) for name in STUDIES if name.startswith("gas") and "blocks" not in name]
    on_cpu = [
        {model: group for (model, p), group in groups(study.records).items() if p == FEW and group.devices == {"cpu"}}
        for study in studies
    ]
    cells = []
    for model, rival in RIVALS.items():
        points = [
            (found[model].mean("rows"), found[model].mean("fit_seconds") - found[rival].mean("fit_seconds"))
            for found in on_cpu
            if model in found and rival in found
        ]
        if len(points) < 2:
            cells.append("-")
            continue
        (least, first), (most, last) = points[0], points[-1]
        verdict = "confirmed" if last / first <= most / least else "refuted"
        cells.append(f"{verdict}, {', '.join(f'{seconds:.0f}' for _, seconds in points)} s")
    rows = [f"{found['paper'].mean('rows'):,.0f}" for found in on_cpu if "paper" in found]
    if len(rows) > 1:
        yield [f"**gas array, {', '.join(rows)} training rows, p = {FEW}**", "", "", ""]
        yield ["the time that the embedding adds is at most linear in the rows", *cells]


def _space_rows(folder: Path) -> Iterator[list[str]]:
    """Figures 2 b, c and 3, and appendix C: measured for the auto-encoder as printed alone."""
    if not (folder / "spaces.jsonl").is_file():
        return
    records = [each for each in Study.read(folder, "spaces").records.values() if "failed" not in each]
    samples = [each["silhouettes"] for each in records if each.get("kind") == "space"]
    yield ["**three samples of the gas array**", "", "", ""]
    for column, figure in (("latent, 4 columns", "Figure 3"), ("latent, 2 columns", "Figure 2 b, c")):
        before, after = (np.array([each[name] for each in samples]) for name in ("inputs", column))
        verdict = judge_lower([Paired.of(0, before - after)])
        number = f"{before.min():.2f}-{before.max():.2f} to {after.min():.2f}-{after.max():.2f}"
        yield [f"K-means clusters separate better, {column} ({figure})", f"{verdict}, {number}", "-", "-"]
    outputs = [each["rmse"] for each in records if each.get("kind") == "output"]
    difference = Paired.of(0, np.array([each["reconstruction"] - each["latent"] for each in outputs]))
    yield ["**abalone**", "", "", ""]
    topic = "the reconstruction has a lower RMSE than the latent space (appendix C)"
    yield [topic, f"{judge_lower([difference])}, {difference.mean:+.3f}", "-", "-"]
