"""An API server inside the process, for tests, the simulator and ``serve``.

Here belongs what a real API server does to objects, on raw JSON so that fields nobody here reads survive; what a kubelet, a
scheduler or a workload controller does belongs to those who play them. Typed access is ``MemoryKube``, HTTP is ``kube.serve``.
"""

from karpenter.kube.memory.deletion import DeleteOptions
from karpenter.kube.memory.kube import MemoryKube
from karpenter.kube.memory.query import Query, compile_query
from karpenter.kube.memory.resources import Resource
from karpenter.kube.memory.server import MemoryServer, Page, Part
from karpenter.kube.memory.store import Entry

__all__ = ["MemoryServer", "MemoryKube", "Resource", "Entry", "Page", "Part", "Query", "compile_query", "DeleteOptions"]
