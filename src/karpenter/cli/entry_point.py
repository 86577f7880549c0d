"""The entry point of the installed program. It imports next to nothing, so that an interrupt right after the start is quiet."""

from __future__ import annotations

import signal


def main() -> None:
    """Run the command line. Until the command begins, an interrupt ends the process without a traceback."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from karpenter.cli import main as command_line

    command_line.main()
