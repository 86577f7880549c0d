import re
from pathlib import Path

from support.worker_scopes import computes, longest_first, next_scope, waits

_TESTS = Path(__file__).parents[2]
#: What no test says that only computes: a control plane among its parameters, on the line of its name or on one of its own.
_TAKES_PLANE = re.compile(r"[(\s](?:plane|control_plane|working_control_plane): ControlPlane\b")


def test_a_worker_gets_files_of_its_sort_first_and_then_those_of_the_other() -> None:
    scopes = ["tests/unit/a.py", "tests/cluster/b.py", "control plane", "tests/unit/c.py"]
    assert next_scope(scopes, waits) == "tests/cluster/b.py"
    assert next_scope(scopes, computes) == "tests/unit/a.py"
    assert next_scope(["control plane"], computes) == "control plane"
    assert next_scope(["tests/unit/c.py"], waits) == "tests/unit/c.py"


def test_the_longest_files_begin_and_all_others_keep_their_order() -> None:
    files = ["tests/cluster/test_aws.py", "tests/unit/a.py", "tests/cluster/b.py", "tests/unit/simulator/test_tune.py"]
    assert longest_first(files, str) == [files[0], files[3], files[1], files[2]]


def test_files_with_a_control_plane_are_among_those_that_wait() -> None:
    files = {file.relative_to(_TESTS.parent).as_posix(): file.read_text() for file in _TESTS.rglob("test_*.py")}
    with_plane = {name for name, text in files.items() if _TAKES_PLANE.search(text)}
    assert len(with_plane) > 30
    assert sorted(filter(computes, with_plane)) == []
