"""Public holidays of countries, from the library ``holidays``, which is imported when a schedule names a country."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from functools import cache

from karpenter.api.capacity_schedule import ScheduleHolidays

_LANGUAGE = "en_US"
#: A year to look up whether a calendar exists at all.
_ANY_YEAR = 2026


class HolidaysError(ValueError):
    """Holidays cannot be found; the message names the field."""


@dataclass(frozen=True)
class Holidays:
    """The holidays of a schedule. ``country``: ISO 3166-1 code, empty for none; ``subdivision``: its part, empty for none."""

    country: str = ""
    subdivision: str = ""
    extra: frozenset[date] = frozenset()
    excluded: frozenset[date] = frozenset()

    def name(self, day: date) -> str | None:
        """The name of the holiday; None for an ordinary day."""
        if day in self.excluded:
            return None
        public = _public_holidays(self.country, self.subdivision, day.year).get(day) if self.country else None
        return public or ("extra holiday" if day in self.extra else None)


def holidays_of(spec: ScheduleHolidays) -> Holidays:
    """The holidays that a schedule names. Raises ``HolidaysError``."""
    holidays = Holidays(
        spec.country or "",
        spec.subdivision or "",
        _dates(spec.extra, "spec.holidays.extra"),
        _dates(spec.excluded, "spec.holidays.except"),
    )
    if holidays.country:
        try:
            _public_holidays(holidays.country, holidays.subdivision, _ANY_YEAR)
        except NotImplementedError as error:
            field = "subdivision" if holidays.subdivision and "subdivision" in str(error).lower() else "country"
            raise HolidaysError(f"spec.holidays.{field}: no calendar is known for {_place(holidays)}") from None
    return holidays


def _place(holidays: Holidays) -> str:
    return f"{holidays.country}-{holidays.subdivision}" if holidays.subdivision else holidays.country


@cache
def _public_holidays(country: str, subdivision: str, year: int) -> Mapping[date, str]:
    """Names by date. Raises ``NotImplementedError`` for unknown places."""
    from holidays import country_holidays  # takes a tenth of a second, and most processes need none

    return dict(country_holidays(country, subdiv=subdivision or None, years=year, language=_LANGUAGE))


def _dates(texts: tuple[str, ...], path: str) -> frozenset[date]:
    try:
        return frozenset(map(date.fromisoformat, texts))
    except ValueError as error:
        raise HolidaysError(f"{path}: {error}") from None
