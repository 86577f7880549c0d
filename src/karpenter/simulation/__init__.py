"""The simulated environment of the controllers: virtual time, scheduler, workload controllers, workload traces, cost reports.

The production loops run here unchanged, against the in-memory API server or a real one, under a clock that jumps to the next
timer. No decision about nodes belongs here, and only the command line may import this package.
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
