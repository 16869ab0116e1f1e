"""The mathematics: tensors in, tensors out; no files, no estimators, no data sources."""

import torch


def _settle_vector_math() -> None:
    """Call exp, cos and sin once from a single thread.

    Where two threads make a process's first call into MKL's vector functions at the same time, one of
    them may get values that differ in the last bit (seen in about one process in fifteen, on a busy
    machine). The optimiser would carry that into visible digits; a run would not repeat bit for bit.
    """
    for dtype in (torch.float32, torch.float64):
        few = torch.linspace(0.0, 1.0, 64, dtype=dtype)
        for function in (torch.exp, torch.cos, torch.sin):
            function(few)


_settle_vector_math()
