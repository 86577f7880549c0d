"""One decision of ours in a process of its own: ``own_decision.py OBJECTS TYPES`` prints seconds, CPU seconds, price and nodes.

As Karpenter's program does, it counts from decoded objects to the plan, in a process that decides for the first time. Modules are
loaded before that, as those of a compiled program are: `make bench plans` counts whole processes.
"""

from __future__ import annotations

import json
import sys
import time

from karpenter.cli import planning
from karpenter.cli.planning_options import InputOptions
from karpenter.cli.settings_options import PLANNING_SETTINGS
from karpenter.scheduling import problem as problem
from karpenter.scheduling.search.linear_program import load_solver
from karpenter.scheduling.solver import solve as solve
from karpenter.settings import resolve_settings


def main(objects: str, types: str) -> None:
    """Decide by default settings."""
    flags = {**dict.fromkeys(PLANNING_SETTINGS), "instance_types_file_path": types}
    settings = resolve_settings(flags, {}, tuple(flags))
    with planning.gc_disabled():
        plan_input = planning.load_plan_input(InputOptions([objects]), settings)
        options = settings.scheduling_options(settings.gates)
        load_solver()
        cpu = time.process_time()
        computed = planning.compute_plan(plan_input, options)
        cpu = time.process_time() - cpu
    solution = computed.solution
    made = {
        "seconds": computed.seconds,
        "cpuSeconds": cpu,
        "perHour": solution.price_per_hour,
        "nodeClaims": len(solution.new_claims),
        "left": len(solution.unschedulable),
    }
    print(json.dumps(made))


if __name__ == "__main__":
    main(*sys.argv[1:])
