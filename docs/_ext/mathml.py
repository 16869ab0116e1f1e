"""Equations as MathML, so that the pages need neither a script nor the network.

Labelled equations show their label, which is also the tag used in the code: ``$$ ... $$ (E1)``.
"""

from __future__ import annotations

from typing import Any

from docutils import nodes
from docutils.nodes import make_id
from docutils.utils.math import latex2mathml
from sphinx.application import Sphinx


def _mathml(node: nodes.Element, **options: Any) -> str:
    # Bars are fences here; browsers would space the closing one like a relation.
    bar = '<mo stretchy="false">|</mo>'
    text: str = latex2mathml.tex2mathml(node.astext(), **options)
    return text.replace(bar, bar.replace(">|", ' lspace="0.08em" rspace="0.08em">|'))


def _inline(writer: Any, node: nodes.math) -> None:
    writer.body.append(_mathml(node))
    raise nodes.SkipNode


def _display(writer: Any, node: nodes.math_block) -> None:
    writer.body.append(writer.starttag(node, "div", CLASS="math"))
    if node.get("number"):
        writer.body.append(f'<span class="eqno">({node["label"]})')
        writer.add_permalink_ref(node, "Link to this equation")
        writer.body.append("</span>")
    writer.body.append(_mathml(node, as_block=True))
    writer.body.append("</div>\n")
    raise nodes.SkipNode


def _name_references(app: Sphinx, doctree: nodes.document, _: str) -> None:
    """References to equations show the label too; Sphinx numbers them page by page."""
    labels = {make_id(f"equation-{label}"): label for label in app.env.domains["math"].data["objects"]}
    for reference in doctree.findall(nodes.reference):
        target = reference.get("refid") or reference.get("refuri", "").rpartition("#")[2]
        if reference.get("internal") and target in labels:
            reference.children = [nodes.Text(f"({labels[target]})")]


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", (_inline, None), (_display, None))
    app.config["html_math_renderer"] = "mathml"
    app.connect("doctree-resolved", _name_references)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
