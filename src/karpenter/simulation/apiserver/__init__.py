"""An API server inside the process, for tests, the simulator and ``karpenter demo``.

This package does what a real API server does to objects. It works on raw JSON, so fields that this program does not read survive.
The stand-ins for kubelet, scheduler and workload controllers do not belong here. Typed access is ``MemoryKube``, HTTP is
``http_front``.
"""

from karpenter.simulation.apiserver.list_query import ObjectQuery, compile_query
from karpenter.simulation.apiserver.memory_kube import MemoryKube
from karpenter.simulation.apiserver.memory_server import MemoryServer
from karpenter.simulation.apiserver.object_deletion import DeleteOptions
from karpenter.simulation.apiserver.object_store import StoredEntry
from karpenter.simulation.apiserver.paging import ListPage, PageRequest
from karpenter.simulation.apiserver.served_resources import ServedResource

__all__ = [
    "MemoryServer",
    "MemoryKube",
    "ServedResource",
    "StoredEntry",
    "ListPage",
    "PageRequest",
    "ObjectQuery",
    "compile_query",
    "DeleteOptions",
]
