"""The entry point of the installed program. It imports next to nothing, so that an interrupt right after the start is quiet."""

from __future__ import annotations

import gc
import os
import signal

#: How many threads numpy's linear algebra starts as it is loaded. Nothing here multiplies matrices that more threads would help
#: with; starting them costs a command a tenth of a second of CPU.
BLAS_THREADS = ("OPENBLAS_NUM_THREADS", "1")


def main() -> None:
    """Run the command line. Until the command begins, an interrupt ends the process without a traceback."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    gc.disable()  # imports leave nothing to collect; the command enables it
    os.environ.setdefault(*BLAS_THREADS)
    from karpenter.cli import lazy_dataclasses

    lazy_dataclasses.compile_methods_on_first_call()
    from karpenter.cli import main as command_line

    command_line.main()
