"""What is told about Services and about owners of pods goes into the state."""

from __future__ import annotations

from karpenter.api.core import ReplicationController, SelectingWorkload, Service
from karpenter.cluster.workloads import WorkloadIndex

Owner = SelectingWorkload | ReplicationController


class WorkloadEvents:
    """Handlers of the kinds. Nobody is woken: pods that wait are looked at every few seconds anyway."""

    def __init__(self, index: WorkloadIndex) -> None:
        self._index = index

    def on_service(self, old: Service | None, new: Service | None) -> None:
        """A Service."""
        if new is not None:
            self._index.set_service(new)
        elif old is not None:
            self._index.remove_service((old.metadata.namespace, old.metadata.name))

    def on_owner(self, old: Owner | None, new: Owner | None) -> None:
        """A ReplicationController, ReplicaSet or StatefulSet; one made anew under the same name has another uid."""
        if old is not None and (new is None or new.metadata.uid != old.metadata.uid):
            self._index.remove_owner(old.metadata.uid)
        if new is not None:
            self._index.set_owner(new)
