"""CPU time of short commands as whole processes: what someone at a terminal waits for."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from bench.figures import Figure

_REPEATS = 10
_ROOT = Path(__file__).parents[1]
_COMMANDS = {
    "karpenter --help": (("--help",), 0.3),
    "karpenter plan, 5 pods": (("plan", "-f", "examples/shop.yaml"), 0.7),
}


def figures() -> Iterator[Figure]:
    """Seconds of CPU, of user and kernel, from the start of Python to its end; the median."""
    for name, (arguments, target) in _COMMANDS.items():
        _cpu_seconds(arguments)  # writes bytecode
        taken = [_cpu_seconds(arguments) for _ in range(_REPEATS)]
        yield Figure(name, median(taken), "s", target)


def _cpu_seconds(arguments: tuple[str, ...]) -> float:
    begun = resource.getrusage(resource.RUSAGE_CHILDREN)
    program = (str(Path(sys.executable).with_name("karpenter")), *arguments)
    # An empty value means unset: without bytecode, Python compiles everything once more in each process.
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    subprocess.run(program, cwd=_ROOT, env=environment, stdout=subprocess.DEVNULL, check=True)
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ended.ru_utime - begun.ru_utime + ended.ru_stime - begun.ru_stime
