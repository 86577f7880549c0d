"""The world around the controllers, played: virtual time, a scheduler, workload controllers, traces, and what it all cost.

The production loops run here unchanged, against the in-memory API server or a real one, under a clock that jumps to the next
timer. No decision about nodes belongs here, and nothing outside this room and the command line may depend on it.
"""

from karpenter.sim.ledger import Bought, Ended, Ledger, Notice
from karpenter.sim.report import Meter, PodTimes, Report, report
from karpenter.sim.scheduler import Scheduler
from karpenter.sim.stage import Cast, Census, Stage, on_stage
from karpenter.sim.time import LoopClock, run, run_paced
from karpenter.sim.workloads import Workloads

__all__ = [
    "run",
    "run_paced",
    "LoopClock",
    "on_stage",
    "Stage",
    "Cast",
    "Census",
    "Scheduler",
    "Workloads",
    "Ledger",
    "Notice",
    "Bought",
    "Ended",
    "Meter",
    "PodTimes",
    "Report",
    "report",
]
