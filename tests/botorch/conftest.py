"""The tests of this folder need BoTorch, which is optional."""

import pytest

pytest.importorskip("botorch", reason="BoTorch is not installed: install prismgp[botorch]")
