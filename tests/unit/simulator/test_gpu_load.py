"""A seeded load like that of a GPU cluster, on EC2's instance types: cost and waiting times keep near their bounds.

The whole trace it resembles is measured by ``make bench`` (``bench/simulations.py``).
"""

from __future__ import annotations

import json
import random
from pathlib import Path

from bench.simulations import POOL
from typer.testing import CliRunner

from karpenter.cli.main import app

HOURS = 2
#: CPU (millicores), memory (MiB), GPUs, and how often pods ask for that.
SHAPES = (
    ((6000, 12288, 1), 5),
    ((12000, 16384, 1), 4),
    ((32000, 65536, 4), 1),
    ((88000, 262144, 8), 1),
    ((8000, 16384, 0), 3),
)
#: Registration takes 45 s; the batch, the decision and the binding have 15 s.
MEDIAN_WAIT_SECONDS = 60


def trace(seed: int) -> str:
    """Pods that stay, and pods that come and go."""
    dice = random.Random(seed)
    rows = ["name,creation_s,deletion_s,cpu_milli,memory_mib,num_gpu"]
    for number in range(16):
        (cpu, memory, gpus), begin = dice.choices(*zip(*SHAPES, strict=True))[0], 0
        end = ""
        if number >= 8:
            begin = dice.randrange(HOURS * 3600)
            end = str(begin + round(dice.lognormvariate(7.5, 1)))
        rows.append(f"pod-{number},{begin},{end},{cpu},{memory},{gpus}")
    return "\n".join(rows) + "\n"


def test_cost_is_within_a_fifth_of_the_bound_and_pods_wait_little_longer_than_a_launch(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text(trace(1))
    (tmp_path / "pools.yaml").write_text(POOL)
    files = ("--trace", str(tmp_path / "trace.csv"), "-f", str(tmp_path / "pools.yaml"))
    duration = ("--days", str(HOURS / 24))
    result = CliRunner().invoke(app, ["simulate", *files, *duration, "-o", "json"], catch_exceptions=False)
    assert (result.exit_code, result.stderr) == (0, "")
    (report,) = json.loads(result.stdout)["reports"]
    assert report["waiting"]["arrivals"]["pods"] == 16
    assert report["waiting"]["arrivals"]["p50Seconds"] <= MEDIAN_WAIT_SECONDS
    assert 1 <= report["cost"]["ratio"] <= 1.2
