"""Which build is running."""

from __future__ import annotations

import msgspec

_SHOWN = 7


class _Source(msgspec.Struct, frozen=True):
    commit_id: str = ""


class _Origin(msgspec.Struct, frozen=True):
    vcs_info: _Source = _Source()


def revision() -> str:
    """The first characters of the commit the package was installed from; empty where its installer did not note one."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        noted = distribution("karpenter").read_text("direct_url.json")
    except PackageNotFoundError:
        return ""
    return commit_in(noted or "")


def commit_in(noted: str) -> str:
    """The commit in what an installer noted (PEP 610)."""
    try:
        return msgspec.json.decode(noted, type=_Origin).vcs_info.commit_id[:_SHOWN]
    except msgspec.DecodeError:
        return ""
