"""Rows on a Dask cluster: every pass is done there, and only small results come back."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cached_property
from typing import Any, Self, TypeVar

import numpy as np

from prismgp._types import AnyArray
from prismgp.data._cluster import Cluster, Outcome
from prismgp.data._encoded import EncodedRows, warn_unseen
from prismgp.data._folder import TableFiles
from prismgp.data._moments import Moments
from prismgp.data._shards import FileRecipe, SelectedRecipe, Shard
from prismgp.data._source import ArraySource, Block, Source, merged_moments, moments_of, rechunked
from prismgp.data._table import TableEncoder
from prismgp.exceptions import DataError

__all__ = ["DaskFileSource", "DaskSource"]

T = TypeVar("T")
_SHARD_ROWS = 65_536  # row groups are joined up to so many: a task costs milliseconds, whatever it does


class DaskSource(Source):
    """Rows in shards, each of which is loaded inside a task; made from Dask collections and from files.

    Results do not depend on the number of workers, nor on which of them does what: the shards are fixed by the data,
    and results are merged in a fixed order.

    Attributes
    ----------
    n_rows, n_inputs, n_outputs : int
    n_shards : int
        Those with rows.
    rows_read : int
        Rows of the files, those with missing values too; known after a pass.
    """

    distributed = True
    rows_read: int = 0

    def __init__(
        self,
        shards: Sequence[Shard],
        cluster: Cluster,
        *,
        n_inputs: int,
        n_outputs: int,
        feature_names: list[str] | None = None,
        single: bool = True,
    ) -> None:
        self._shards, self._cluster = list(shards), cluster
        self.n_inputs, self.n_outputs = n_inputs, n_outputs
        self.feature_names, self.single = feature_names, single
        if any(shard.n_rows is None for shard in self._shards):
            _ = self.moments  # the pass that counts also takes the moments, which are needed anyway
        self._shards = [shard for shard in self._shards if shard.n_rows]
        self.n_rows = sum(shard.n_rows or 0 for shard in self._shards)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.n_rows:,} rows in {self.n_shards} shards, {self.n_inputs} inputs)"

    @property
    def n_shards(self) -> int:
        return len(self._shards)

    @property
    def small(self) -> bool:
        return False

    def map(self, function: Callable[[Source], T]) -> list[T]:
        outcomes = self._cluster.map(function, self._shards)
        self._note(outcomes)
        return [outcome.value for outcome in outcomes]  # type: ignore[misc]  # a value, as there is no error

    def reduce(self, function: Callable[[Source], T], merge: Callable[[T, T], T]) -> T:
        if not self._shards:
            return function(ArraySource(np.empty((0, self.n_inputs)), np.empty((0, self.n_outputs))))
        outcome = self._cluster.reduce(function, merge, self._shards)
        self._note([outcome])
        return outcome.value  # type: ignore[return-value]  # as above

    def _note(self, outcomes: Sequence[Outcome[Any]]) -> None:
        for outcome in outcomes:
            if outcome.error is not None:
                raise outcome.error
        self.rows_read = sum(outcome.rows_read for outcome in outcomes) or self.rows_read
        for outcome in outcomes[1:]:
            outcomes[0].unseen.update(outcome.unseen)
        if outcomes:
            warn_unseen(outcomes[0].unseen)

    @cached_property
    def moments(self) -> tuple[Moments, Moments]:
        """Of inputs and of targets, in one pass, which also counts the rows of each shard."""
        found = self.map(moments_of)
        for shard, (x, _) in zip(self._shards, found, strict=True):
            shard.n_rows = x.count
        total = Moments(self.n_inputs), Moments(self.n_outputs)
        for each in found:
            total = merged_moments(total, each)
        return total

    def select(self, rows: AnyArray) -> DaskSource:
        """The rows of increasing indices; each shard keeps its own."""
        lengths = [shard.n_rows or 0 for shard in self._shards]
        ends = np.cumsum(lengths)
        cuts = np.searchsorted(rows, ends)
        shards, done = [], 0
        for shard, length, end, cut in zip(self._shards, lengths, ends, cuts, strict=True):
            if cut > done:
                own = rows[done:cut] - (end - length)
                shards.append(Shard(SelectedRecipe(shard.recipe, length, own), shard.parts, len(own)))
            done = int(cut)
        return DaskSource(
            shards,
            self._cluster,
            n_inputs=self.n_inputs,
            n_outputs=self.n_outputs,
            feature_names=self.feature_names,
            single=self.single,
        )

    def take(self, index: AnyArray) -> ArraySource:
        """The rows of increasing indices; no others leave the workers."""
        return self.select(index).load()

    def load(self) -> ArraySource:
        parts = self.map(_all_rows) or [(np.empty((0, self.n_inputs)), np.empty((0, self.n_outputs)))]
        return ArraySource(np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts]))

    def blocks(self, rows: int) -> Iterator[Block]:
        """The rows themselves, one shard after the other; a last resort, as they all come here."""
        return rechunked(self._fetched(), rows)

    def _fetched(self) -> Iterator[Block]:
        for shard in self._shards:
            outcomes = self._cluster.map(_all_rows, [shard])
            for outcome in outcomes:
                if outcome.error is not None:
                    raise outcome.error
                if outcome.value is not None:
                    yield outcome.value

    def labelled(self, labels: AnyArray | None) -> Self:
        if labels is not None:
            raise DataError(
                "partition: labels of single rows cannot be used with rows on a cluster; pass a fitted clusterer "
                "with a predict method, or None, and the clusters are found on a sample"
            )
        return self


class DaskFileSource(DaskSource):
    """Rows of files that the workers read; made by ``from_parquet`` and ``from_csv`` with ``client=``.

    Attributes
    ----------
    encoder : TableEncoder
    targets : list of str
    """

    encoder: TableEncoder

    def __init__(
        self,
        files: TableFiles,
        encoder: TableEncoder,
        targets: list[str],
        cluster: Cluster,
        *,
        missing: str,
        single: bool = True,
        truths: Collection[str] = (),
    ) -> None:
        self.files, self.encoder, self.targets, self.missing = files, encoder, targets, missing
        self._truths = truths
        for file in files.files:
            file.path = os.path.abspath(file.path)  # workers have working folders of their own
        shards = []
        for piece, first, count in files.pieces(_SHARD_ROWS):
            table = EncodedRows(piece, encoder, targets, missing=missing, first_row=first, truths=truths)
            shards.append(Shard(FileRecipe(table, single=single), n_rows=count if missing == "error" else None))
        names = encoder.feature_names
        super().__init__(
            shards, cluster, n_inputs=len(names), n_outputs=len(targets), feature_names=names, single=single
        )
        if not self.n_rows:
            why = "there are no rows below the header"
            if self.rows_read:
                why = f"every one of the {self.rows_read:,} rows has a missing value; exclude the emptiest columns"
            raise DataError(f"{files.path}: {why}")

    def encoded_by(self, encoder: TableEncoder) -> DaskFileSource:
        """The same rows, encoded as another table was; targets stay."""
        absent = encoder.missing_columns(self.files.names)
        if absent:
            raise DataError(f"{self.files.path}: input columns {', '.join(map(repr, absent))} missing")
        return DaskFileSource(
            self.files,
            encoder,
            self.targets,
            self._cluster,
            missing=self.missing,
            single=self.single,
            truths=self._truths,
        )


def _all_rows(source: Source) -> Block:
    rows = source.load()
    return rows.x, rows.y
