"""Reading ahead: the next block is made while the one before is used."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import TypeVar

__all__ = ["prefetched"]

T = TypeVar("T")
_AHEAD = 2  # blocks that wait, beside the one in use and the one in the making
_PATIENCE = 0.1  # seconds between looks whether anybody still wants the blocks


class _End:
    """No more items, and why."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


def prefetched(items: Iterator[T], ahead: int = _AHEAD) -> Iterator[T]:
    """The items in their order, made by a thread of its own; its errors are raised here.

    When the consumer stops early, the thread ends and closes the iterator it reads from.
    """
    ready: queue.Queue[T | _End] = queue.Queue(ahead)
    stopped = threading.Event()

    def put(item: T | _End) -> bool:
        while not stopped.is_set():
            try:
                ready.put(item, timeout=_PATIENCE)
            except queue.Full:
                continue
            return True
        return False

    def read() -> None:
        error: BaseException | None = None
        try:
            for item in items:
                if not put(item):
                    break
        except BaseException as trouble:  # noqa: BLE001  raised where the items are used
            error = trouble
        finally:
            if hasattr(items, "close"):
                items.close()
        put(_End(error))

    thread = threading.Thread(target=read, name="prismgp-read-ahead", daemon=True)
    thread.start()
    try:
        while True:
            item = ready.get()
            if isinstance(item, _End):
                if item.error is not None:
                    raise item.error
                return
            yield item
    finally:
        stopped.set()
        thread.join()
