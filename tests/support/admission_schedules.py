"""Which CapacitySchedules an API server accepts or rejects."""

from __future__ import annotations

from support.admission_rows import A, Json, R, Row, Verdict, rows_of


def _schedules(id_: str, verdict: Verdict, path: str, *values: object, words: tuple[str, ...] = ()) -> list[Row]:
    return rows_of(id_, "CapacitySchedule", verdict, [{path: value} for value in values], words)


def _window(**fields: str) -> list[Json]:
    return [{"days": "mon-fri", "from": "07:00", "until": "22:00", **fields}]


SCHEDULES = [
    *_schedules("schedule-pools", A, "spec.nodePools", {"names": ["a"]}, {"matchLabels": {"env": "dev"}}),
    *_schedules("schedule-pools-R", R, "spec.nodePools", {}, {"names": []}, words=("select NodePools",)),
    *_schedules("schedule-days", A, "spec.windows", _window(), _window(days="daily"), _window(days="mon,wed,sat-sun")),
    *_schedules("schedule-days-R", R, "spec.windows", _window(days="monday"), _window(days="mon-"), _window(days="")),
    *_schedules("schedule-times", A, "spec.windows", _window(until="24:00"), _window(until="02:00")),
    *_schedules("schedule-times-R", R, "spec.windows", _window(until="24:01"), [{"days": "daily", "from": "07:00"}]),
    *_schedules("schedule-begin-R", R, "spec.windows", [{**_window()[0], "from": "7:00"}]),
    *_schedules("schedule-state-R", R, "spec.windows", _window(state="Sleeping")),
    *_schedules("schedule-holidays", A, "spec.holidays", {"country": "KR"}, {"country": "DE", "subdivision": "BY"}),
    *_schedules("schedule-holidays-R", R, "spec.holidays", {"country": "Korea"}, {"extra": ["24.12.2026"]}),
    *_schedules("schedule-subdivision-R", R, "spec.holidays", {"subdivision": "BY"}, words=("needs its country",)),
    *_schedules("schedule-respect", A, "spec.sleep", {"respect": []}, {"respect": ["DoNotDisrupt"]}),
    *_schedules("schedule-respect-R", R, "spec.sleep", {"respect": ["PodDisruptionBudgets"]}, words=("DoNotDisrupt",)),
    *_schedules("schedule-durations-R", R, "spec.sleep", {"grace": "10"}, {"deadline": "Never"}),
]
