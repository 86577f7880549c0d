"""Finding a cluster and connecting to it.

Where the address and the credentials come from is a person's matter and follows kubectl: an explicit path, else the files of
``KUBECONFIG`` merged so that the first to name something wins, else ``~/.kube/config``, else the service account of the pod
we run in. TLS and authentication are lightkube's; it is imported only when something connects, because commands
that need no cluster should start at once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lightkube.config.kubeconfig import KubeConfig, SingleConfig
    from lightkube.config.models import User

    from karpenter.kube.client import KubeClient
    from karpenter.kube.credentials import Program
    from karpenter.kube.throttle import TokenBucket

_HOME = Path("~/.kube/config")
_LISTS = ("clusters", "contexts", "users")
_FILES = ("certificate-authority", "client-certificate", "client-key", "tokenFile")

#: Seconds to connect, and to wait for the next piece of an ordinary answer.
_CONNECT_SECONDS = 10.0
_READ_SECONDS = 30.0


class ConfigError(Exception):
    """No usable cluster configuration; the message says what is wrong, where, and how to mend it."""


@dataclass(frozen=True, slots=True)
class Connection:
    """How to reach a cluster: ``server`` (URL), the default ``namespace``, and where both come from (``source``)."""

    server: str
    namespace: str
    context: str
    source: str
    _details: SingleConfig = field(repr=False, compare=False)


def load(path: str = "", context: str = "") -> Connection:
    """Find the cluster to talk to. ``path`` and ``context`` override what the environment says. Raises ``ConfigError``."""
    source, config = _find(path)
    from lightkube.core.exceptions import ConfigError as Refused

    try:
        details = config.get(context or None)
    except Refused as error:
        raise ConfigError(f"{source}: {error}; choose one with `kubectl config use-context`") from error
    except KeyError as error:
        raise ConfigError(f"{source}: a context refers to {error}, which the file does not define") from error
    if details is None:  # the library's type allows it where a default was given
        raise ConfigError(f"{source}: no context")
    return Connection(details.cluster.server, details.namespace, details.context_name, source, details)


def connect(connection: Connection, limit: TokenBucket | None = None) -> KubeClient:
    """A client for the cluster, to be closed by the caller; ``limit`` paces its requests.

    Raises ``ConfigError`` for unusable certificates, users or proxies.
    """
    import httpx2
    import msgspec
    from lightkube.config.client_adapter import ConnectionParams
    from lightkube.config.models import User
    from lightkube.core.exceptions import ConfigError as Refused

    from karpenter.kube import transport
    from karpenter.kube.client import KubeClient
    from karpenter.kube.credentials import ProgramAuth

    user = connection._details.user or User()
    program = _program(user)
    details = connection._details._replace(user=msgspec.structs.replace(user, exec=None))
    timeout = httpx2.Timeout(_READ_SECONDS, connect=_CONNECT_SECONDS, pool=None)
    try:
        parameters = ConnectionParams(timeout=timeout).httpx_params(details)
        parameters["transport"] = transport.lively(connection.server, parameters["verify"])
    except (Refused, OSError, ValueError, ImportError) as error:
        raise ConfigError(f"{connection.source}, context {connection.context}: {error}") from error
    if program is not None:
        parameters["auth"] = ProgramAuth(program)
    http = httpx2.AsyncClient(**parameters, headers={"User-Agent": user_agent()})
    return KubeClient(http, limit)


def _program(user: User) -> Program | None:
    """The helper program that hands out the user's tokens, where the kubeconfig names one and no token."""
    from karpenter.kube.credentials import Program

    wanted = user.exec
    if wanted is None or user.token or user.token_file:
        return None
    environment = {variable.name: variable.value for variable in wanted.env or ()}
    return Program(wanted.apiVersion, wanted.command, tuple(wanted.args or ()), environment, wanted.installHint or "")


def user_agent() -> str:
    """What every call announces itself as (OPS-360)."""
    return f"karpenter/{version('karpenter')}"


def _find(path: str) -> tuple[str, KubeConfig]:
    listed = path or os.environ.get("KUBECONFIG", "")
    home = _HOME.expanduser()
    if listed or home.is_file():
        files = [Path(item).expanduser() for item in listed.split(os.pathsep) if item] if listed else [home]
        return listed or str(_HOME), _read(files, must_exist=bool(path))
    from lightkube.config.kubeconfig import KubeConfig
    from lightkube.core.exceptions import ConfigError as Refused

    try:
        return "the pod's service account", KubeConfig.from_service_account()
    except (Refused, KeyError) as error:
        raise ConfigError(
            f"no cluster configured: KUBECONFIG is not set, {_HOME} does not exist and this is not a pod; "
            "set KUBECONFIG, or try `karpenter demo`, which needs no cluster"
        ) from error


def _read(files: list[Path], *, must_exist: bool) -> KubeConfig:
    import msgspec
    from lightkube.config.kubeconfig import KubeConfig

    found = [file for file in files if must_exist or file.is_file()]
    names = ", ".join(map(str, files))
    if not found:
        raise ConfigError(f"KUBECONFIG names {names}, which does not exist; correct it or unset it")
    try:
        return KubeConfig.from_dict(_merge([_parsed(file) for file in found]), fname=found[0])
    except (KeyError, TypeError, AttributeError, msgspec.ValidationError) as error:
        raise ConfigError(f"{names} is not a kubeconfig: {error!r}") from error


def _parsed(file: Path) -> dict[str, object]:
    import yaml

    try:
        content = yaml.safe_load(file.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"cannot read kubeconfig {file}: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{file} is not a kubeconfig: expected a mapping")
    return {**content, **{part: list(_anchored(content.get(part) or [], file.parent)) for part in _LISTS}}


def _anchored(entries: list[dict[str, object]], folder: Path) -> Iterator[dict[str, object]]:
    """The entries with file names made absolute, since each file's are relative to that file."""
    for entry in entries:
        yield {
            key: {name: _beside(folder, name, item) for name, item in value.items()}
            if isinstance(value, dict)
            else value
            for key, value in entry.items()
        }


def _beside(folder: Path, name: str, value: object) -> object:
    return str(folder / value) if name in _FILES and isinstance(value, str) and value else value


def _merge(contents: list[dict[str, object]]) -> dict[str, object]:
    """The first file to set a value or to define a name wins, as in kubectl."""
    merged: dict[str, object] = {}
    for part in _LISTS:
        by_name: dict[object, Mapping[str, object]] = {}
        for content in contents:
            for entry in content[part]:  # type: ignore[attr-defined]
                by_name.setdefault(entry["name"], entry)
        merged[part] = list(by_name.values())
    current = (content.get("current-context") for content in contents)
    merged["current-context"] = next((name for name in current if name), None)
    return merged
