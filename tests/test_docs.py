"""What the build of the documentation does not see: names that are not public, and public names without a page."""

from __future__ import annotations

import ast
import re
from importlib import import_module
from pathlib import Path

import pytest

import prismgp

DOCS = Path(__file__).resolve().parents[1] / "docs"
TUTORIALS = sorted(page for page in (DOCS / "tutorials").glob("*.md") if page.stem != "index")
MODULES = {"active", "data", "datasets", "exceptions", "metrics", "plots"}
IMPORTING_BOTORCH = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")


def find_in(page: Path, pattern: str) -> list[str]:
    return re.findall(pattern, page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def public_names_in(page: Path) -> set[tuple[str, str]]:
    """What the cells of a notebook take from the package: module and name. Cells for a shell are left out."""
    cells = find_in(page, r"^```\{code-cell\}\n(?::tags:[^\n]*\n)?(.*?)^```")
    code = "\n".join(cell for cell in cells if not cell.startswith("%%sh\n"))
    found = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "prismgp":
            found |= {(node.module, alias.name) for alias in node.names}
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "prismgp":
            found.add(("prismgp", node.attr))
    return found


def test_every_tutorial_is_listed() -> None:
    (toctree,) = find_in(DOCS / "tutorials" / "index.md", r"^```\{toctree\}\n(.*?)^```")
    assert sorted(re.findall(r"^[\w-]+$", toctree, flags=re.MULTILINE)) == [page.stem for page in TUTORIALS]
    assert len(TUTORIALS) >= 6


@IMPORTING_BOTORCH
@pytest.mark.parametrize("page", [DOCS / "quickstart.md", *TUTORIALS], ids=lambda page: page.stem)
def test_notebooks_are_executed_and_use_public_names(page: Path) -> None:
    assert page.read_text(encoding="utf-8").startswith("---\nfile_format: mystnb\nkernelspec:\n")
    found = public_names_in(page)
    assert found
    assert not {(module, name) for module, name in found if name not in import_module(module).__all__}


@IMPORTING_BOTORCH
def test_every_public_name_has_a_page() -> None:
    listed = set(find_in(DOCS / "api.md", r"^   (prismgp\.[\w.]+)$"))
    for name in listed:
        module, _, last = name.rpartition(".")
        assert hasattr(import_module(module), last), name
    # The base class has a sentence, not a page; modules have those of their names.
    expected = {f"prismgp.{name}" for name in set(prismgp.__all__) - MODULES - {"GPRegressor", "__version__"}}
    for module in ("exceptions", "metrics"):
        expected |= {f"prismgp.{module}.{name}" for name in import_module(f"prismgp.{module}").__all__}
    assert expected <= listed
