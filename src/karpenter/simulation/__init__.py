"""The world around the controllers, played: virtual time, a scheduler, workload controllers, traces, and what it all cost.

The production loops run here unchanged, against the in-memory API server or a real one, under a clock that jumps to the next
timer. No decision about nodes belongs here, and nothing outside this room and the command line may depend on it.
"""

from karpenter.simulation.kube_scheduler import KubeScheduler
from karpenter.simulation.run_history import InstanceEnded, InstanceLaunched, InstanceNotice, RunHistory
from karpenter.simulation.run_report import CostMeter, PodWaitTimes, RunReport, summarize_run
from karpenter.simulation.simulated_cluster import ClusterCounts, SimulatedCluster, SimulationConfig, running_cluster
from karpenter.simulation.virtual_time import LoopClock, run_paced, run_virtual
from karpenter.simulation.workload_controllers import WorkloadControllers

__all__ = [
    "run_virtual",
    "run_paced",
    "LoopClock",
    "running_cluster",
    "SimulatedCluster",
    "SimulationConfig",
    "ClusterCounts",
    "KubeScheduler",
    "WorkloadControllers",
    "RunHistory",
    "InstanceNotice",
    "InstanceLaunched",
    "InstanceEnded",
    "CostMeter",
    "PodWaitTimes",
    "RunReport",
    "summarize_run",
]
