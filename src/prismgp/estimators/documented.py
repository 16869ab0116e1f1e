"""Links from scikit-learn's HTML view of an estimator to its documentation."""

from __future__ import annotations

from functools import lru_cache
from importlib import metadata


class Documented:
    """A class whose HTML view links to the page of the API, if the installed package says where that is."""

    _doc_link_module = "prismgp"

    @property
    def _doc_link_template(self) -> str:  # scikit-learn fills it in; an empty one means no link
        base = _documentation_url()
        return f"{base}/api/prismgp.{{estimator_name}}.html" if base else ""


@lru_cache(maxsize=1)
def _documentation_url() -> str:
    """The project's URL named "Documentation", without a slash at the end; empty if there is none."""
    try:
        links = metadata.metadata("prismgp").get_all("Project-URL") or []
    except metadata.PackageNotFoundError:  # a checkout that is not installed
        return ""
    named = {name: str(address) for name, _, address in (link.partition(", ") for link in links)}
    return named.get("Documentation", "").rstrip("/")
