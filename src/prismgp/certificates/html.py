"""A certificate as HTML, for notebooks: self-contained, every text escaped."""

from __future__ import annotations

from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prismgp.certificates.certificate import Certificate


def certificate_html(certificate: Certificate) -> str:
    """The summary as a table, with the assumptions and the members folded up below."""
    style = files("prismgp.certificates").joinpath("certificate.css").read_text(encoding="utf-8")
    return f'<div class="prismgp-certificate"><style>{style}</style>{_body(certificate)}</div>'


def _body(certificate: Certificate) -> str:
    state = "holds" if certificate.holds else "does not hold"
    rows = "".join(
        f'<tr><th scope="row">{escape(subject)}</th><td>{escape(text)}</td></tr>'
        for subject, text in certificate.summary()
    )
    parts = [
        f"<p><strong>Certificate of {escape(certificate.name)}</strong> <span>{state}</span></p>",
        f"<table><tbody>{rows}</tbody></table>",
    ]
    if certificate.assumptions:
        items = "".join(f"<li>{escape(each)}</li>" for each in certificate.assumptions)
        parts.append(f"<details><summary>Assumptions</summary><ul>{items}</ul></details>")
    for member in certificate.members:
        parts.append(f"<details><summary>{escape(member.name)}</summary>{_body(member)}</details>")
    return "".join(parts)
