"""An API server inside the process, for tests, the simulator and ``karpenter demo``.

Here belongs what a real API server does to objects, on raw JSON so that fields nobody here reads survive; what a kubelet, a
scheduler or a workload controller does belongs to those who play them. Typed access is ``MemoryKube``, HTTP is ``http_front``.
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
