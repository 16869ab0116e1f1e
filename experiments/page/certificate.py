"""A certificate as a section of a page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments.internals import MEMBER_HEADER, certificate_lines, member_rows
from experiments.page.content import Notice, Section, Table
from prismgp.certificates import Certificate
from prismgp.exceptions import DataError

__all__ = ["certificate_section"]


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
        Headed by whether the certificate holds, with which probability and against what; where it does not hold,
        by the reason.

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
        facts += [("Assumption", text) for text in found.assumptions]
    return Section(title or f"Certificate: {found.name}", tables=tables, notice=_verdict(found), facts=facts)


def _verdict(found: Certificate) -> Notice:
    if not found.holds:
        reason = found.reason.strip().rstrip(".") or "no reason is given"
        text = f"{reason[0].upper()}{reason[1:]}. Nothing is certified, however close the model may be."
        return Notice(text, "bad", "This certificate does not hold.")
    odds = "without any randomness" if found.probability == 1.0 else f"with probability {found.probability:.3g}"
    return Notice(f"All of it together, {odds}. Compared with: {found.statement}", "good", "This certificate holds.")
