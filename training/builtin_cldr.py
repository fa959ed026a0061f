"""Slots of the sentence frames that CLDR (package `babel`) and `num2words` fill, whatever the foreign language.

Each function takes the code of the foreign language and returns items whose English forms start with "en" and whose
foreign forms start with that code.
"""

import datetime
from collections.abc import Iterable, Sequence
from decimal import Decimal
from math import inf
from typing import Literal

from babel import Locale
from babel.dates import format_date, format_time, format_timedelta
from babel.numbers import format_currency, format_decimal, format_percent
from babel.units import format_unit
from num2words import num2words

from training.builtin_frames import Slot, ordered_pairs

_Unit = Literal["minute", "hour", "day", "week", "month"]
_SECONDS: dict[_Unit, int] = {"minute": 60, "hour": 3600, "day": 86400, "week": 7 * 86400, "month": 30 * 86400}
_QUARTERS = range(0, 60, 15)


def cldr_slots(lang: str) -> dict[str, Slot]:
    """The slots by name, for the foreign language "de" or "fr"."""
    shop_prices = [euros + cents / 100 for euros in range(2, 60, 2) for cents in (0, 50, 90, 99)]
    days_of_week = weekdays(lang)
    return {
        "date": calendar_days(lang),
        "weekday": days_of_week,
        "weekdays": ordered_pairs(days_of_week),
        "month": months(lang),
        "year_month": months_of_years(lang, range(1985, 2025)),
        "time": clock_times(lang, range(24)),
        "early": clock_times(lang, range(5, 11)),
        "morning": clock_times(lang, range(6, 11), _QUARTERS),
        "evening": clock_times(lang, range(16, 22), _QUARTERS),
        "departure": clock_times(lang, range(6, 23), _QUARTERS),
        "past": relative_times(lang, {"day": range(-30, -1), "week": range(-10, -1), "month": range(-11, -1)}),
        "just_past": relative_times(lang, {"minute": range(-59, -1), "hour": range(-12, -1)}),
        "future": relative_times(lang, {"day": range(2, 31), "week": range(2, 11), "month": range(2, 12)}),
        "sum": calculations(lang, range(1, 60)),
        "number1": numbers(lang, range(1, 41)),
        "number2": numbers(lang, range(1, 41)),
        # In front of a noun, German would inflect the "eins" at the end of 101.
        "count": numbers(lang, [count for count in range(2, 1000) if count % 100 != 1]),
        "handful": numbers(lang, range(2, 7)),
        "few": numbers(lang, range(2, 21)),
        "below_hundred": numbers(lang, range(2, 100)),
        "adult_age": numbers(lang, range(18, 100)),
        "page": numbers(lang, range(2, 1000)),
        "platform": numbers(lang, range(2, 10)),
        "rank": ordinals(lang, range(2, 61)),
        "sold": numbers(lang, range(110, 990, 10)),
        "tickets": numbers(lang, range(1_000, 20_000, 250)),
        "visitors": numbers(lang, range(20_000, 1_000_000, 5_000)),
        "percent": percentages(lang, [half / 2 for half in range(5, 191)]),
        "price": prices(lang, shop_prices),
        "small_price": prices(lang, [euros + cents / 100 for euros in range(1, 11) for cents in range(0, 100, 10)]),
        "high_price": prices(lang, range(10, 300, 15), ("EUR", "USD", "GBP")),
        "old_price": prices(lang, range(30, 50)),
        "new_price": prices(lang, range(10, 30)),
        "rent": prices(lang, range(400, 1_550, 50)),
        "money": amounts_of_money(lang, range(2, 101), ("EUR", "USD", "CHF", "SEK")),
        "grams": quantities(lang, "gram", range(50, 625, 25)),
        "kilograms": quantities(lang, "kilogram", range(48, 100, 4)),
        "height": quantities(lang, "meter", [centimeters / 100 for centimeters in range(150, 200)]),
        "centimeters": quantities(lang, "centimeter", range(10, 60, 2)),
        "near": quantities(lang, "kilometer", range(2, 41)),
        "far": quantities(lang, "kilometer", range(25, 1_200, 5)),
        "area": quantities(lang, "square-meter", range(30, 165, 5)),
        "speed": quantities(lang, "kilometer-per-hour", range(20, 135, 5), length="short"),
        "temperature": quantities(lang, "celsius", [*range(-20, -1), *range(2, 39)]),
        "minutes": quantities(lang, "minute", range(2, 91)),
        "film_length": quantities(lang, "minute", range(70, 180)),
        "delay": quantities(lang, "minute", range(5, 65, 5)),
    }


def calendar_days(lang: str) -> Slot:
    """900 days between 1995 and 2027: the date ("en"), "en_weekday" and "en_short", and likewise for `lang`."""
    # Thirteen days apart they run through all weekdays, days of the month and months evenly.
    days = [datetime.date(1995, 1, 1) + datetime.timedelta(days=13 * count) for count in range(900)]
    return [
        {
            form: text
            for code in ("en", lang)
            for form, text in (
                (code, _long_date(day, code)),
                (f"{code}_weekday", format_date(day, "EEEE", locale=code)),
                (f"{code}_short", format_date(day, "short", locale=code)),
            )
        }
        for day in days
    ]


def _long_date(day: datetime.date, lang: str) -> str:
    text = format_date(day, "long", locale=lang)
    # CLDR lacks the ordinal that French demands for the first of a month.
    return f"1er{text[1:]}" if lang == "fr" and day.day == 1 else text


def weekdays(lang: str) -> Slot:
    """Monday to Sunday."""
    monday = datetime.date(2024, 1, 1)
    days = [monday + datetime.timedelta(days=count) for count in range(7)]
    return [{code: format_date(day, "EEEE", locale=code) for code in ("en", lang)} for day in days]


def months(lang: str) -> Slot:
    """January to December."""
    days = [datetime.date(2024, month, 1) for month in range(1, 13)]
    return [{code: format_date(day, "MMMM", locale=code) for code in ("en", lang)} for day in days]


def months_of_years(lang: str, years: Iterable[int]) -> Slot:
    """Every month of the years, as in "March 2004"."""
    days = [datetime.date(year, month, 1) for year in years for month in range(1, 13)]
    return [{code: format_date(day, "MMMM y", locale=code) for code in ("en", lang)} for day in days]


def clock_times(lang: str, hours: Iterable[int], minutes: Sequence[int] = range(0, 60, 5)) -> Slot:
    """Times of day, hours from 0 to 23: "3:05 PM" in English, "15:05" in German and French."""
    times = [datetime.time(hour, minute) for hour in hours for minute in minutes]
    return [{code: format_time(time, "short", locale=code) for code in ("en", lang)} for time in times]


def numbers(lang: str, values: Iterable[int]) -> Slot:
    """Numbers in localized digits ("en") and in words ("en_words"), and likewise for `lang`."""
    return [
        {
            form: text
            for code in ("en", lang)
            for form, text in (
                (code, format_decimal(value, locale=code)),
                (f"{code}_words", num2words(value, lang=code)),
            )
        }
        for value in values
    ]


def ordinals(lang: str, values: Iterable[int]) -> Slot:
    """Ordinal numbers in words, as in "twenty-first"."""
    return [{code: num2words(value, lang=code, to="ordinal") for code in ("en", lang)} for value in values]


def calculations(lang: str, values: Sequence[int]) -> Slot:
    """Two of the values and their sum in words: "en_a", "en_b" and "en_sum", and likewise for `lang`."""
    sums = sorted({one + two for one in values for two in values})
    words = {code: {value: num2words(value, lang=code) for value in (*values, *sums)} for code in ("en", lang)}
    return [
        {
            f"{code}_{form}": words[code][value]
            for code in ("en", lang)
            for form, value in (("a", one), ("b", two), ("sum", one + two))
        }
        for one in values
        for two in values
    ]


def percentages(lang: str, values: Iterable[float]) -> Slot:
    """Percentages with the decimals that the values, in percent, are written with."""
    # A binary fraction would turn 12.3 into 12.300000000000001 %.
    return [
        {
            code: format_percent(Decimal(str(value)) / 100, locale=code, decimal_quantization=False)
            for code in ("en", lang)
        }
        for value in values
    ]


def prices(lang: str, amounts: Iterable[float], currencies: Sequence[str] = ("EUR",)) -> Slot:
    """Prices with the sign of their currency: "€12.50" in English, "12,50 €" in German and French."""
    return [
        {code: format_currency(amount, currency, locale=code) for code in ("en", lang)}
        for amount in amounts
        for currency in currencies
    ]


def amounts_of_money(lang: str, amounts: Iterable[int], currencies: Sequence[str]) -> Slot:
    """Whole amounts with the name of their currency, as in "12 Swiss francs"."""
    return [
        {
            code: format_currency(amount, currency, "#,##0", locale=code, currency_digits=False, format_type="name")
            for code in ("en", lang)
        }
        for amount in amounts
        for currency in currencies
    ]


def quantities(lang: str, unit: str, values: Iterable[float], length: Literal["long", "short"] = "long") -> Slot:
    """Quantities of a CLDR unit, written out ("12 kilometers") or with length="short" abbreviated ("12 km")."""
    return [{code: format_unit(value, unit, length=length, locale=code) for code in ("en", lang)} for value in values]


def relative_times(lang: str, counts: dict[_Unit, Iterable[int]]) -> Slot:
    """Times from now by unit, "minute" to "month": "in 3 days" for a count of 3 and "3 days ago" for one of -3."""
    return [
        {
            code: format_timedelta(
                datetime.timedelta(seconds=count * _SECONDS[unit]),
                granularity=unit,
                threshold=inf,
                add_direction=True,
                locale=code,
            )
            for code in ("en", lang)
        }
        for unit, unit_counts in counts.items()
        for count in unit_counts
    ]


def territory(code: str, lang: str) -> str:
    """CLDR's name of a country, from its ISO 3166 code."""
    return str(Locale.parse(lang).territories[code])


def language(code: str, lang: str) -> str:
    """CLDR's name of a language, from its ISO 639 code."""
    return str(Locale.parse(lang).languages[code])
