"""Self-contained HTML pages: the report about a model on a table, and what such pages are made of.

``examine`` computes all numbers, ``model_page`` puts them into tables, figures and words (``content``), and ``render``
writes the page. The last two need the ``report`` extra.
"""

from prismgp.report.content import Figure, Highlight, Notice, Page, Section, Table
from prismgp.report.examine import Examination, examine
from prismgp.report.model_page import certificate_section, model_page
from prismgp.report.render import render, to_html, to_svg

__all__ = [
    "Examination",
    "Figure",
    "Highlight",
    "Notice",
    "Page",
    "Section",
    "Table",
    "certificate_section",
    "examine",
    "model_page",
    "render",
    "to_html",
    "to_svg",
]
