"""The sentence frames: an English and a foreign template over the same slots.

A slot is a list of items, and an item maps the names of its forms to text, so that a template picks the form that
its grammar asks for with `{slot[form]}`. Here "from" is the form of a country behind "aus", with the right article::

    ("{who[en]} comes from {country[en]}.", "{who[de]} kommt {country[from]}.")

To add a frame, append its two templates to `training/builtin_frames_de.py` or `training/builtin_frames_fr.py`. The
slots are in `training/builtin_cldr.py` (dates, numbers, prices, units), `training/builtin_phrases.py` and, for the
words that decline, `training/builtin_words_de.py` and `training/builtin_words_fr.py`. No sentence may have two
translations: `tests/test_builtin.py` enumerates every frame and checks that.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from string import Formatter

Pair = tuple[str, str]
Item = dict[str, str]
Slot = list[Item]

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


def build_frame(english: str, foreign: str, slots: dict[str, Slot]) -> Frame:
    """The frame of two templates, with those of the slots that they name."""
    fields = [name for template in (english, foreign) for _, name, _, _ in Formatter().parse(template) if name]
    names = dict.fromkeys(name.partition("[")[0] for name in fields)
    return Frame(english, foreign, {name: slots[name] for name in names})


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
