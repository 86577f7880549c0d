"""Batches the events that ask for provisioning: one decision over many pods is cheaper and better than many decisions over one
(SCH-005 to SCH-007).
"""

from __future__ import annotations

from karpenter.runtime.batch_window import BatchWindow, WindowTimer
from karpenter.runtime.reconciler import SINGLETON_KEY
from karpenter.runtime.workqueue import WorkQueue


class ProvisioningBatcher:
    """Collects triggers and adds the provisioner to its ``queue`` when a window closes.

    Triggers are level-based: each pass reads the current state. While a pass is under way, between the close of a window
    and ``release``, triggers wait; then they open the next window.
    """

    def __init__(self, window: BatchWindow) -> None:
        self.queue: WorkQueue[str] = WorkQueue()
        self._timer = WindowTimer(window, self._on_close)
        self._triggered_uids: set[str] = set()
        self._is_held = False

    def trigger(self, uid: str) -> None:
        """An object needs a pass. A UID already seen in this window changes nothing (SCH-006)."""
        if uid not in self._triggered_uids:
            self._triggered_uids.add(uid)
            if not self._is_held:
                self._timer.extend()

    def release(self) -> None:
        """The pass is over."""
        self._is_held = False
        if self._triggered_uids:
            self._timer.extend()

    def _on_close(self) -> None:
        self._triggered_uids.clear()
        self._is_held = True
        self.queue.add(SINGLETON_KEY)
