"""Writes that change nothing (``dryRun=All``): they are made on a copy of the server, so every check and default is the same.

The copy shares the immutable entries, so it costs one dictionary entry per object. It has no watches.
"""

from __future__ import annotations

from karpenter.simulation.apiserver import status_errors
from karpenter.simulation.apiserver.memory_server import MemoryServer
from karpenter.simulation.apiserver.object_store import ChangeLog, ObjectTable
from karpenter.simulation.apiserver.request_parsing import ApiRequest

_ALL = "All"
#: The parameters of each write, as errors call them.
_OPTIONS = {"POST": "CreateOptions", "PUT": "UpdateOptions", "PATCH": "PatchOptions", "DELETE": "DeleteOptions"}


def is_dry_run(method: str, call: ApiRequest) -> bool:
    """Whether a write asks to change nothing, by its parameter or by its delete options. Raises ``Invalid`` for another value."""
    options = _OPTIONS.get(method)
    asked = call.query.get("dryRun") or _in_delete_options(call.body)
    if options is None or not asked:
        return False
    if asked != _ALL:
        fault = f'Unsupported value: ["{asked}"]: supported values: "{_ALL}"'
        raise status_errors.invalid_options(options, "dryRun", fault)
    return True


def _in_delete_options(body: object) -> str:
    if not isinstance(body, dict) or body.get("kind") != "DeleteOptions":
        return ""
    return str(next(iter(body.get("dryRun") or ()), ""))


def scratch_copy(server: MemoryServer) -> MemoryServer:
    """A server with the same objects and versions, whose changes are visible nowhere else."""
    copy = MemoryServer(server.clock, kinds=[resource.kind for resource in server.resources])
    copy._tables = {
        key: ObjectTable(
            table.resource, ChangeLog(1), {space: dict(entries) for space, entries in table.by_namespace.items()}
        )
        for key, table in server._tables.items()
    }
    copy._revision, copy._created = server._revision, server._created
    copy._random.setstate(server._random.getstate())
    copy._dependents = server._dependents.copy_for(copy)
    return copy
