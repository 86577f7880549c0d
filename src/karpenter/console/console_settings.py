"""Settings of the console that the controller serves."""

from __future__ import annotations

from dataclasses import dataclass

from karpenter.model import setting_kinds as kinds
from karpenter.model.setting_kinds import setting


@dataclass(frozen=True)
class ConsoleSettings:
    """Console."""

    console: bool = setting(
        kinds.SWITCH,
        "false",
        "Serve the web console in every replica; all of them watch the cluster then. Everybody signs in with a token, and "
        "sees what kubectl would show.",
    )
    console_port: int = setting(kinds.PORT, "8082", "Port of the web console.")
    console_certificate_directory: str = setting(
        kinds.DIRECTORY,
        "",
        "Directory with tls.crt and tls.key of the web console. Without them it listens on loopback only, for "
        "kubectl port-forward.",
    )
