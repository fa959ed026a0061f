"""What the sentence frames of all language pairs share: the frame itself, and slots filled from CLDR and num2words.

A frame is an English and a foreign template over the same slots. A slot is a list of items, and an item maps the
names of its forms to text, so that a template picks the form its grammar asks for with `{slot[form]}`::

    frame("{who[en]} comes from {country[en]}.", "{who[de]} kommt {country[from]}.", who=people, country=countries)

To add a frame, append one to the list of its topic and language pair (`training/builtin_frames_de.py`,
`training/builtin_frames_fr.py`); the words are in `training/builtin_words_de.py` and `training/builtin_words_fr.py`.
No sentence may have two translations: `tests/test_builtin.py` enumerates every frame and checks that.

Each slot function below takes the foreign language and returns items whose English forms start with "en" and whose
foreign forms start with that language's code.
"""

import datetime
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from math import inf, prod

from babel import Locale
from babel.dates import format_date, format_time, format_timedelta
from babel.numbers import format_currency, format_decimal, format_percent
from babel.units import format_unit
from num2words import num2words

Pair = tuple[str, str]
Item = dict[str, str]
Slot = list[Item]

_SECONDS = {"minute": 60, "hour": 3600, "day": 86400, "week": 7 * 86400, "month": 30 * 86400, "year": 365 * 86400}
# CLDR's no-break spaces and typographic apostrophe are written as their plain counterparts.
_PLAIN = str.maketrans({"\u00a0": " ", "\u202f": " ", "\u2019": "'"})


@dataclass(frozen=True)
class Frame:
    """A sentence and its translation with slots to fill, each combination of slot items giving one pair.

    Args:
        english: Template of the English sentence. The first letter of a sentence is capitalized afterwards.
        foreign: Template of its translation.
        slots: The items that each slot can take.
    """

    english: str
    foreign: str
    slots: dict[str, Slot] = field(repr=False)

    @property
    def size(self) -> int:
        """How many pairs the frame can give."""
        return prod(len(items) for items in self.slots.values())

    def pair(self, index: int) -> Pair:
        """The (English, foreign) pair of this number, 0 <= index < size."""
        chosen: dict[str, Item] = {}
        for name, items in self.slots.items():
            index, position = divmod(index, len(items))
            chosen[name] = items[position]
        return _sentence(self.english, chosen), _sentence(self.foreign, chosen)

    def pairs(self) -> Iterator[Pair]:
        """All pairs of the frame."""
        return (self.pair(index) for index in range(self.size))


def _sentence(template: str, chosen: dict[str, Item]) -> str:
    text = template.format_map(chosen).translate(_PLAIN)
    return text[0].upper() + text[1:]


def frame(english: str, foreign: str, **slots: Slot) -> Frame:
    """A frame, its slots given by name."""
    return Frame(english, foreign, slots)


def table(forms: str, rows: str) -> Slot:
    """Items written as a table: form names separated by blanks, then one item a line, its forms separated by "|"."""
    names = forms.split()
    return [
        dict(zip(names, (cell.strip() for cell in row.split("|")), strict=True)) for row in rows.strip().splitlines()
    ]


def ordered_pairs(items: Slot) -> Slot:
    """Two different items as one, their forms numbered: "en" of the first is "en1", of the second "en2"."""
    return [
        {form + number: text for number, item in (("1", one), ("2", two)) for form, text in item.items()}
        for one in items
        for two in items
        if one is not two
    ]


def a_or_an(phrase: str) -> str:
    """The phrase behind its English indefinite article, judged by its first letter."""
    return f"an {phrase}" if phrase[0] in "aeiou" else f"a {phrase}"


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
    """Numbers in localized digits ("en"), and in words ("en_words", "en_ordinal"), and likewise for `lang`."""
    return [
        {
            form: text
            for code in ("en", lang)
            for form, text in (
                (code, format_decimal(value, locale=code)),
                (f"{code}_words", num2words(value, lang=code)),
                (f"{code}_ordinal", num2words(value, lang=code, to="ordinal")),
            )
        }
        for value in values
    ]


def calculations(lang: str, values: Sequence[int]) -> Slot:
    """Two of the values and their sum in words: "en_a", "en_b" and "en_sum", and likewise for `lang`."""
    return [
        {
            f"{code}_{form}": num2words(value, lang=code)
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


def quantities(lang: str, unit: str, values: Iterable[float], length: str = "long") -> Slot:
    """Quantities of a CLDR unit, written out ("12 kilometers") or with length="short" abbreviated ("12 km")."""
    return [{code: format_unit(value, unit, length=length, locale=code) for code in ("en", lang)} for value in values]


def relative_times(lang: str, counts: dict[str, Iterable[int]]) -> Slot:
    """Times from now by unit, "minute" to "year": "in 3 days" for a count of 3 and "3 days ago" for one of -3."""
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
