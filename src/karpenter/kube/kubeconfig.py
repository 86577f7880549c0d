"""Kubeconfig files: read, merged and chosen from as kubectl does.

The rules are kubectl's: of several files the first to define a name wins with everything it says about it, a missing file of a
list is passed over, paths are relative to the file that names them. Where kubectl prompts or passes over something
that cannot work, a message says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from karpenter.api.kinds import without_nulls

#: The extension of a cluster whose content is handed to helper programs.
EXEC_EXTENSION = "client.authentication.k8s.io/exec"
_DEFAULT_NAMESPACE = "default"
_HOW_TO_CHOOSE = "choose a kubeconfig with --kubeconfig or KUBECONFIG"


class InvalidKubeconfig(Exception):
    """An unusable kubeconfig; the message says what is wrong and where."""


class KubeconfigExtension(msgspec.Struct, frozen=True):
    """Something a tool keeps in a kubeconfig."""

    name: str
    extension: object = None


class KubeconfigCluster(msgspec.Struct, frozen=True, rename="kebab"):
    """An API server and the authorities to trust; ``*_data`` is base64 of PEM and wins over a file."""

    server: str = ""
    tls_server_name: str = ""
    insecure_skip_tls_verify: bool = False
    certificate_authority: str = ""
    certificate_authority_data: str = ""
    proxy_url: str = ""
    disable_compression: bool = False
    extensions: tuple[KubeconfigExtension, ...] = ()


class ExecVariable(msgspec.Struct, frozen=True):
    """An environment variable of a helper program."""

    name: str
    value: str = ""


class ExecConfig(msgspec.Struct, frozen=True, rename="camel"):
    """A helper program that hands out credentials."""

    command: str
    api_version: str = ""
    args: tuple[str, ...] = ()
    env: tuple[ExecVariable, ...] = ()
    install_hint: str = ""
    provide_cluster_info: bool = False
    interactive_mode: str = ""


class KubeconfigUser(msgspec.Struct, frozen=True, rename="kebab"):
    """Credentials of a user, and the user they impersonate (``as_*``)."""

    token: str = ""
    token_file: str = msgspec.field(name="tokenFile", default="")
    username: str = ""
    password: str = ""
    client_certificate: str = ""
    client_certificate_data: str = ""
    client_key: str = ""
    client_key_data: str = ""
    exec: ExecConfig | None = None
    auth_provider: Mapping[str, object] | None = None
    as_user: str = msgspec.field(name="as", default="")
    as_uid: str = ""
    as_groups: tuple[str, ...] = ()
    as_user_extra: Mapping[str, tuple[str, ...]] = {}


class KubeconfigContext(msgspec.Struct, frozen=True):
    """Which user speaks to which cluster."""

    cluster: str = ""
    user: str = ""
    namespace: str = _DEFAULT_NAMESPACE


class SelectedContext(NamedTuple):
    """What a context stands for."""

    name: str
    cluster: KubeconfigCluster
    user: KubeconfigUser
    namespace: str


class _NamedCluster(msgspec.Struct, frozen=True):
    name: str
    cluster: KubeconfigCluster = KubeconfigCluster()


class _NamedUser(msgspec.Struct, frozen=True):
    name: str
    user: KubeconfigUser = KubeconfigUser()


class _NamedContext(msgspec.Struct, frozen=True):
    name: str
    context: KubeconfigContext = KubeconfigContext()


class Kubeconfig(msgspec.Struct, frozen=True, rename="kebab"):
    """The content of a file, or of several merged."""

    clusters: tuple[_NamedCluster, ...] = ()
    users: tuple[_NamedUser, ...] = ()
    contexts: tuple[_NamedContext, ...] = ()
    current_context: str = ""


_Entry = TypeVar("_Entry", _NamedCluster, _NamedUser, _NamedContext)


def read_files(files: Sequence[Path]) -> Kubeconfig:
    """What files say together. Raises ``InvalidKubeconfig``."""
    return _merge([_read_file(file) for file in files])


def select_context(config: Kubeconfig, context: str) -> SelectedContext:
    """What a context stands for; the current one where none is named. Raises ``InvalidKubeconfig``."""
    name = context or config.current_context
    if not name:
        raise InvalidKubeconfig("no context is chosen (current-context); choose one with `kubectl config use-context`")
    selected = {entry.name: entry.context for entry in config.contexts}.get(name)
    if selected is None:
        names = ", ".join(entry.name for entry in config.contexts)
        raise InvalidKubeconfig(
            f"context {name!r} not found; " + (f"choose {names}" if names else "there is no context in it")
        )
    clusters = {entry.name: entry.cluster for entry in config.clusters}
    users = {"": KubeconfigUser()} | {entry.name: entry.user for entry in config.users}
    if selected.cluster not in clusters:
        raise InvalidKubeconfig(f"context {name!r} refers to cluster {selected.cluster!r}, which is not defined")
    if selected.user not in users:
        raise InvalidKubeconfig(f"context {name!r} refers to user {selected.user!r}, who is not defined")
    namespace = selected.namespace or _DEFAULT_NAMESPACE
    return SelectedContext(name, clusters[selected.cluster], users[selected.user], namespace)


def _read_file(file: Path) -> Kubeconfig:
    import yaml

    from karpenter.model.bounded_yaml import load_yaml, yaml_error_line

    try:
        content = load_yaml(file.read_bytes().decode())
    except OSError as error:
        raise InvalidKubeconfig(f"cannot read kubeconfig {file}: {error.strerror}; {_HOW_TO_CHOOSE}") from error
    except UnicodeDecodeError as error:
        raise InvalidKubeconfig(f"kubeconfig {file} is not a text in UTF-8; {_HOW_TO_CHOOSE}") from error
    except yaml.YAMLError as error:
        raise InvalidKubeconfig(f"kubeconfig {file} cannot be read as YAML: {yaml_error_line(error)}") from error
    if not isinstance(content, dict):
        raise InvalidKubeconfig(f"{file} is not a kubeconfig: expected a mapping")
    try:
        kubeconfig = msgspec.convert(without_nulls(content), Kubeconfig)
    except msgspec.MsgspecError as error:
        raise InvalidKubeconfig(f"{file} is not a kubeconfig: {error}") from error
    _check_duplicates(file, kubeconfig)
    return _with_absolute_paths(kubeconfig, file.parent)


def _check_duplicates(file: Path, config: Kubeconfig) -> None:
    for sort, entries in (("cluster", config.clusters), ("user", config.users), ("context", config.contexts)):
        names = [entry.name for entry in entries]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise InvalidKubeconfig(f"{file} defines {sort} {twice!r} twice")


def _with_absolute_paths(config: Kubeconfig, folder: Path) -> Kubeconfig:
    """With file names made absolute, since each file's are relative to that file."""
    replace = msgspec.structs.replace

    def beside(name: str) -> str:
        return str(folder / name) if name else ""

    def cluster(entry: _NamedCluster) -> _NamedCluster:
        authority = beside(entry.cluster.certificate_authority)
        return replace(entry, cluster=replace(entry.cluster, certificate_authority=authority))

    def user(entry: _NamedUser) -> _NamedUser:
        kubeconfig_user = entry.user
        placed = replace(
            kubeconfig_user,
            token_file=beside(kubeconfig_user.token_file),
            client_certificate=beside(kubeconfig_user.client_certificate),
            client_key=beside(kubeconfig_user.client_key),
            exec=_with_absolute_command(kubeconfig_user.exec, beside),
        )
        return replace(entry, user=placed)

    return replace(config, clusters=tuple(map(cluster, config.clusters)), users=tuple(map(user, config.users)))


def _with_absolute_command(program: ExecConfig | None, beside: Callable[[str], str]) -> ExecConfig | None:
    """A command without a slash is looked for in PATH, others are files."""
    if program is None or "/" not in program.command:
        return program
    return msgspec.structs.replace(program, command=beside(program.command))


def _merge(configs: Sequence[Kubeconfig]) -> Kubeconfig:
    return Kubeconfig(
        _merge_by_name([config.clusters for config in configs]),
        _merge_by_name([config.users for config in configs]),
        _merge_by_name([config.contexts for config in configs]),
        next((config.current_context for config in configs if config.current_context), ""),
    )


def _merge_by_name(lists: Sequence[tuple[_Entry, ...]]) -> tuple[_Entry, ...]:
    by_name: dict[str, _Entry] = {}
    for entries in lists:
        for entry in entries:
            by_name.setdefault(entry.name, entry)
    return tuple(by_name.values())
