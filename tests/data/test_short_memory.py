"""A GPU whose memory runs out: chunks are halved, the pass begins again, the answer stays."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
import torch

from prismgp import SSGPRegressor
from prismgp.core.statistics import SpectralStatistics, Statistics
from prismgp.data import ArraySource, Chunks, Standardiser
from prismgp.exceptions import PrismGPWarning, TooLargeError


class Greedy(SpectralStatistics):
    """Statistics that take more than there is for chunks of many rows."""

    room = 600

    def over(self, chunks: Iterable[tuple[torch.Tensor, torch.Tensor]], *, rows: int, q: int) -> Statistics:
        def watched() -> Iterable[tuple[torch.Tensor, torch.Tensor]]:
            for number, (x, y) in enumerate(chunks):
                if number and len(x) > self.room:  # in the middle of a pass
                    raise torch.cuda.OutOfMemoryError("CUDA out of memory")
                yield x, y

        return super().over(watched(), rows=rows, q=q)


def chunks_of(rows: int) -> Chunks:
    rng = np.random.default_rng(0)
    source = ArraySource(rng.standard_normal((5_000, 3)), rng.standard_normal((5_000, 1)))
    standardiser = Standardiser.fit(source, normalize=True)
    return Chunks(source, standardiser, rows=rows, dtype=torch.float64, device=torch.device("cpu"))


def test_chunks_are_halved_until_they_fit() -> None:
    w = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    chunks = chunks_of(2_048)
    with pytest.warns(PrismGPWarning, match="out of memory") as said:
        found = chunks.reduce(Greedy(w))
    assert [str(each.message).split()[-2] for each in said] == ["1,024", "512"]
    assert chunks.rows == 512
    expected = chunks_of(2_048).reduce(SpectralStatistics(w))
    assert found.n == expected.n == 5_000
    torch.testing.assert_close(found.moments, expected.moments, rtol=1e-12, atol=1e-10)


def test_where_nothing_helps_the_error_says_what_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Greedy, "room", 10)
    with pytest.warns(PrismGPWarning, match="out of memory"), pytest.raises(TooLargeError, match="fewer frequencies"):
        chunks_of(1_024).reduce(Greedy(torch.ones(3, 4, dtype=torch.float64)))


def test_a_whole_fit_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((2_000, 2))
    y = np.sin(x[:, 0]) + 0.1 * rng.standard_normal(2_000)
    plain = SSGPRegressor(4, random_state=0, max_iter=5, chunk_size=1_000).fit(x, y)
    monkeypatch.setattr("prismgp.core.evidence.SpectralStatistics", Greedy)
    with pytest.warns(PrismGPWarning, match="out of memory"):
        short = SSGPRegressor(4, random_state=0, max_iter=5, chunk_size=1_000).fit(x, y)
    np.testing.assert_allclose(short.predict(x), plain.predict(x), rtol=1e-5, atol=1e-6)
