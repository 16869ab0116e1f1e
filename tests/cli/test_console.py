"""What needs no numerical libraries answers at once."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
import sys
from prismgp.cli import main
code = main(sys.argv[1:])
print(code, *sorted({"torch", "numpy", "pyarrow", "sklearn"} & set(sys.modules)), file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("arguments", "printed", "last"),
    [
        (["--help"], "certify   bound how far", "0"),
        (["--version"], "prismgp ", "0"),
        ([], "", "2"),
        (["fti"], "", "2"),
    ],
)
def test_the_list_of_commands_does_not_wait(arguments: list[str], printed: str, last: str) -> None:
    done = subprocess.run([sys.executable, "-c", CODE, *arguments], capture_output=True, text=True, check=True)
    assert printed in done.stdout
    assert done.stderr.splitlines()[-1] == last
