"""Which build is running."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from karpenter.version import __version__

_REVISION_CHARACTERS = 7


class _VcsInfo(msgspec.Struct, frozen=True):
    commit_id: str = ""


class _DirectUrl(msgspec.Struct, frozen=True):
    vcs_info: _VcsInfo = _VcsInfo()


def vcs_revision() -> str:
    """The first characters of the commit the package was installed from; empty where its installer did not note one."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        noted = distribution("karpenter").read_text("direct_url.json")
    except PackageNotFoundError:
        return ""
    return commit_of_direct_url(noted or "")


def commit_of_direct_url(direct_url: str) -> str:
    """The commit in what an installer noted (PEP 610)."""
    try:
        return msgspec.json.decode(direct_url, type=_DirectUrl).vcs_info.commit_id[:_REVISION_CHARACTERS]
    except msgspec.DecodeError:
        return ""


@dataclass(frozen=True)
class BuildInfo:
    """What is running: version, and the commit it was built from where that is known."""

    version: str = __version__
    commit: str = ""
