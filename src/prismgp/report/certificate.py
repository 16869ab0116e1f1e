"""A certificate as a section of a page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from prismgp.certificates import MEMBER_HEADER, Certificate, certificate_lines, member_rows
from prismgp.exceptions import DataError
from prismgp.report.content import Notice, Section, Table

__all__ = ["certificate_section", "percent"]


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
    share = np.ravel(found.mean.difference / np.sqrt(found.noise_variance))
    half, most = (float(np.quantile(share, level, method="higher")) for level in (0.5, 0.95))
    if not np.isfinite(half):
        return "Too little was computed to bound the distance from the exact GP."
    points = "the test point" if len(share) == 1 else f"half of the {len(share):,} test points"
    far = f", within {_amount(most)} it at 95%" if len(share) > 1 and np.isfinite(most) else ""
    return f"The exact GP's mean is within {_amount(half)} the noise std of this model's at {points}{far}."


def _amount(share: float) -> str:
    return f"{percent(share)} of" if share < 0.995 else f"{share:.2g} times"


def percent(share: float) -> str:
    """A share in percent, with two digits."""
    return f"{100 * share:.2g}%" if share < 0.995 else f"{100 * share:,.0f}%"
