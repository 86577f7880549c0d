"""Traces: which pods a file stands for, and what is said of a bad line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from karpenter.simulator.trace_file import TraceWindow, read_trace
from karpenter.simulator.workload import WorkloadError

HEADER = "name,creation_s,deletion_s,runtime_s,cpu_milli,memory_mib,num_gpu,workload"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return tmp_path / "month.csv"


def write(path: Path, *rows: str, header: str = HEADER) -> Path:
    path.write_text("\n".join((header, *rows)) + "\n")
    return path


def test_each_row_is_a_pod_with_its_requests_and_its_end(trace: Path) -> None:
    write(trace, "web-1,0,600,,500,1024,,web", "job-1,60,,300,2000,4096,1,", "db-1,120,,,250,512,0,db")
    workload = read_trace(trace)
    described = [
        (life.name, life.template.workload, life.arrives_at_seconds, life.leaves_at_seconds, life.runs_for_seconds)
        for life in workload.pods
    ]
    assert described == [
        ("web-1", "web", 0, 600, None),
        ("job-1", "job-1", 60, None, 300),
        ("db-1", "db", 120, None, None),
    ]
    assert workload.pods[1].template.requests == {"cpu": "2000m", "memory": "4096Mi", "nvidia.com/gpu": "1"}
    assert workload.pods[2].template.requests == {"cpu": "250m", "memory": "512Mi"}
    assert workload.duration_seconds == 601


@pytest.mark.parametrize(
    ("window", "said"),
    [
        (TraceWindow(first_day=5), "no pod is there from day 5 to its end"),
        (TraceWindow(first_day=5, days=2), "no pod is there from day 5 to day 7"),
        (TraceWindow(days=0.5), "no pod is there from day 0 to day 0.5"),
    ],
)
def test_a_window_without_pods_is_refused_with_the_days_in_which_there_are_some(
    trace: Path, window: TraceWindow, said: str
) -> None:
    write(trace, "a,86400,172800,,500,512,,")
    with pytest.raises(WorkloadError) as error:
        read_trace(trace, window)
    assert str(error.value) == (
        f"{trace}: {said}; its pods are there from day 1 to day 2: choose another --from-day or --days"
    )


def test_names_that_no_label_can_hold_are_written_as_labels(trace: Path) -> None:
    long = "a" * 80
    write(trace, f"{long},0,600,,500,1024,,", "web,0,600,,500,1024,,team/web 1")
    assert {life.template.labels["app"] for life in read_trace(trace).pods} == {"a" * 63, "team-web-1"}


def test_pods_of_a_workload_have_an_owner_and_others_have_none(trace: Path) -> None:
    write(trace, "web-1,0,600,,500,1024,,web", "run-1,0,,300,500,1024,,train", "alone,0,,,250,512,0,")
    owners = [life.template.owner for life in read_trace(trace).pods]
    assert [owner and (owner.kind, owner.name) for owner in owners] == [
        None,
        ("Job", "train"),
        ("ReplicaSet", "web-1"),
    ]


def test_a_window_keeps_the_pods_that_are_there_in_it(trace: Path) -> None:
    day = 86_400
    write(
        trace,
        f"before,0,{day},,1,1,,",
        f"since-before,10,{day + 5},,1,1,,",
        f"inside,{day + 7},{day * 3},,1,1,,",
        f"after,{day * 2},,,1,1,,",
    )
    workload = read_trace(trace, TraceWindow(first_day=1, days=1))
    assert [(life.name, life.arrives_at_seconds, life.leaves_at_seconds) for life in workload.pods] == [
        ("since-before", 0, 5),
        ("inside", 7, day * 2),
    ]
    assert workload.duration_seconds == day


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ("web,-5,600,,500,1024,,", "line 3: creation_s -5 must not be negative"),
        ("web,soon,600,,500,1024,,", "line 3: creation_s 'soon' is no number"),
        ("web,700,600,,500,1024,,", "line 3: deletion_s 600 is before creation_s 700"),
        ("web,0,600,60,500,1024,,", "line 3: it has deletion_s and runtime_s; one of them says when the pod leaves"),
        ("Web!,0,600,,500,1024,,", "line 3: name 'Web!' is no pod name (lower case letters, digits, - and .)"),
        ("first,0,600,,500,1024,,", "line 3: name 'first' stands in line 2 already"),
        ("web,0,600,,,1024,,", "line 3: cpu_milli '' is no number"),
        ("web,0,600,,nan,1024,,", "line 3: cpu_milli nan is out of range"),
        ("web,0", "line 3: it has another number of fields than the header"),
        ("web,0,600,,500,1024,,,extra", "line 3: it has another number of fields than the header"),
    ],
)
def test_a_bad_line_is_named_with_what_is_wrong(trace: Path, row: str, complaint: str) -> None:
    write(trace, "first,0,600,,500,1024,,", row)
    with pytest.raises(WorkloadError) as error:
        read_trace(trace)
    assert str(error.value) == f"{trace}: {complaint}"


def test_of_many_bad_lines_five_are_named_and_the_others_counted(trace: Path) -> None:
    write(trace, *(f"pod-{number},-1,,,1,1,," for number in range(8)))
    with pytest.raises(WorkloadError) as error:
        read_trace(trace)
    assert str(error.value).count("must not be negative") == 5
    assert str(error.value).endswith("\n3 more lines")


def test_a_parquet_file_gives_the_same_pods_as_csv(trace: Path, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = {
        "name": ["web", "job"],
        "creation_s": [10, 20],
        "deletion_s": [500, None],
        "runtime_s": [None, 60.0],
        "cpu_milli": [250, 500],
        "memory_mib": [64, 128],
    }
    same = tmp_path / "trace.parquet"
    parquet.write_table(pyarrow.table(columns), same)
    trace.write_text(
        "name,creation_s,deletion_s,runtime_s,cpu_milli,memory_mib\nweb,10,500,,250,64\njob,20,,60,500,128\n"
    )
    assert read_trace(same).pods == read_trace(trace).pods
    same.write_bytes(b"no such thing")
    with pytest.raises(WorkloadError, match="is no Parquet file"):
        read_trace(same)


def test_without_pyarrow_a_parquet_file_is_refused_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(WorkloadError, match=r"pip install 'karpenter\[parquet\]'"):
        read_trace(tmp_path / "trace.parquet")


def test_a_missing_column_is_named(trace: Path) -> None:
    write(trace, "web,0", header="name,creation_s")
    with pytest.raises(WorkloadError, match=r"month.csv: line 1: no column cpu_milli, memory_mib"):
        read_trace(trace)


def test_a_file_without_pods_or_without_existence_is_refused(trace: Path) -> None:
    with pytest.raises(WorkloadError, match=r"month.csv: cannot be read \(No such file or directory\)"):
        read_trace(trace)
    write(trace)
    with pytest.raises(WorkloadError, match=r"month.csv: there are no pods in it"):
        read_trace(trace)
