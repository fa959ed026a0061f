"""The words of the English-German sentence frames, as slots; `training/builtin_frames.py` says what a slot is.

"en" is the English form and "de" the German nominative; the functions name the further forms of their items.
"""

from training.builtin_cldr import language, territory
from training.builtin_frames import Item, Slot, a_or_an, ordered_pairs, table

_WOMEN = ("Anna", "Clara", "Emma", "Julia", "Laura", "Maria", "Nina", "Sarah")
_MEN = ("Adrian", "Ben", "David", "Felix", "Martin", "Oscar", "Paul", "Thomas")
_RELATIVES = """
mother | meine Mutter | meine Mutter | meiner Mutter | meiner Mutter | f
father | mein Vater | meinen Vater | meinem Vater | meines Vaters | m
sister | meine Schwester | meine Schwester | meiner Schwester | meiner Schwester | f
brother | mein Bruder | meinen Bruder | meinem Bruder | meines Bruders | m
aunt | meine Tante | meine Tante | meiner Tante | meiner Tante | f
uncle | mein Onkel | meinen Onkel | meinem Onkel | meines Onkels | m
daughter | meine Tochter | meine Tochter | meiner Tochter | meiner Tochter | f
son | mein Sohn | meinen Sohn | meinem Sohn | meines Sohnes | m
"""
_PRONOUNS = {
    "f": {"he": "she", "his": "her", "er": "sie", "sein": "ihr"},
    "m": {"he": "he", "his": "his", "er": "er", "sein": "sein"},
}
_THINGS = """
key | Schlüssel | m
umbrella | Regenschirm | m
suitcase | Koffer | m
coat | Mantel | m
computer | Computer | m
hat | Hut | m
pencil | Bleistift | m
bag | Tasche | f
lamp | Lampe | f
jacket | Jacke | f
camera | Kamera | f
bottle | Flasche | f
guitar | Gitarre | f
watch | Armbanduhr | f
book | Buch | n
bicycle | Fahrrad | n
shirt | Hemd | n
dress | Kleid | n
knife | Messer | n
mobile phone | Handy | n
"""
_FURNITURE = """
table | Tisch | m
chair | Stuhl | m
cupboard | Schrank | m
armchair | Sessel | m
door | Tür | f
bench | Bank | f
bed | Bett | n
sofa | Sofa | n
window | Fenster | n
piano | Klavier | n
"""
_PLACES = """
train station | Bahnhof | m
airport | Flughafen | m
park | Park | m
school | Schule | f
church | Kirche | f
pharmacy | Apotheke | f
library | Bibliothek | f
museum | Museum | n
town hall | Rathaus | n
cinema | Kino | n
hospital | Krankenhaus | n
hotel | Hotel | n
"""
_SHOPS = """
supermarket | Supermarkt | m
flower shop | Blumenladen | m
bakery | Bäckerei | f
pharmacy | Apotheke | f
library | Bibliothek | f
museum | Museum | n
restaurant | Restaurant | n
swimming pool | Schwimmbad | n
"""
_EVENTS = """
course | Kurs | m
lecture | Vortrag | m
exam | Prüfung | f
wedding | Hochzeit | f
meeting | Besprechung | f
exhibition | Ausstellung | f
concert | Konzert | n
game | Spiel | n
"""
_DOCUMENTS = """
letter | Brief | m
contract | Vertrag | m
invoice | Rechnung | f
newspaper | Zeitung | f
photo | Foto | n
certificate | Zeugnis | n
"""
_TEXTS = """
novel | Roman | m
article | Artikel | m
story | Geschichte | f
poem | Gedicht | n
"""
# "ending" is that of "ein", "kein" and the possessives in the accusative, "adj" that of an adjective behind them.
_GENDERS = {
    "m": {"der": "der", "den": "den", "dem": "dem", "ein": "einen", "ending": "en", "adj": "en", "er": "er"},
    "f": {"der": "die", "den": "die", "dem": "der", "ein": "eine", "ending": "e", "adj": "e", "er": "sie"},
    "n": {"der": "das", "den": "das", "dem": "dem", "ein": "ein", "ending": "", "adj": "es", "er": "es"},
}
# The adjectives that a thing can have too much of, and others.
_QUALITIES = """
old | alt | alt
big | groß | groß
small | klein | klein
heavy | schwer | schwer
cheap | billig | billig
expensive | teuer | teur
"""
_OTHER_ADJECTIVES = """
new | neu | neu
red | rot | rot
green | grün | grün
black | schwarz | schwarz
"""
_CITIES = """
Munich | München
Vienna | Wien
Cologne | Köln
Prague | Prag
Rome | Rom
Milan | Mailand
Venice | Venedig
Warsaw | Warschau
Brussels | Brüssel
Geneva | Genf
Zurich | Zürich
Lisbon | Lissabon
Copenhagen | Kopenhagen
Athens | Athen
Berlin | Berlin
Hamburg | Hamburg
London | London
Paris | Paris
"""
_COUNTRIES = """
    AR AT AU BE BG BR CA CL CN CO CU CZ DE DK EE EG ES FI FR GR HR HU IE IL IN IS IT JP KE KR LT LU LV MA MG MX NO
    NP NZ PE PL PT RO RS SE SI SN TH TN ZA CH IQ IR MN NL PH SK UA
"""
# The countries whose names take an article.
_COUNTRY_GENDERS = {"CH": "f", "MN": "f", "SK": "f", "UA": "f", "IQ": "m", "IR": "m", "NL": "plural", "PH": "plural"}
_COUNTRY_PHRASES = {
    "": {"in": "in {}", "to": "nach {}", "from": "aus {}"},
    "f": {"in": "in der {}", "to": "in die {}", "from": "aus der {}"},
    "m": {"in": "im {}", "to": "in den {}", "from": "aus dem {}"},
    "plural": {"in": "in den {}", "to": "in die {}", "from": "aus den {}"},
}
_LANGUAGES = """
    de en fr es it pt nl da sv fi is ga et lv lt pl cs sk hu hr sr bg ro ru uk el tr ar th vi id zh ja ko ka hy
"""
_GROUPS = """
students | Studenten
residents | Einwohner
members | Mitglieder
customers | Kunden
children | Kinder
families | Familien
companies | Unternehmen
voters | Wähler
"""
_CONTENTS = """
books | Bücher | in the library | in der Bibliothek
rooms | Zimmer | in the hotel | im Hotel
children | Kinder | in the school | in der Schule
trees | Bäume | in the park | im Park
pictures | Bilder | in the museum | im Museum
beds | Betten | in the hospital | im Krankenhaus
chairs | Stühle | in the cinema | im Kino
houses | Häuser | in this village | in diesem Dorf
"""


def word_slots() -> dict[str, Slot]:
    """The slots by name."""
    people = _people()
    things, cities, languages = _nouns(_THINGS), table("en de", _CITIES), _languages()
    qualities = table("en de stem", _QUALITIES)
    adjectives = qualities + table("en de stem", _OTHER_ADJECTIVES)
    return {
        "who": people,
        # Fewer of them, where other slots of a frame are large.
        "someone": people[::3],
        "name": _names(),
        "couple": _couples(),
        "thing": things,
        "things": ordered_pairs(things),
        "described": [_described(adjective, thing) for adjective in adjectives for thing in things],
        "quality": qualities,
        "furniture": _nouns(_FURNITURE),
        "place": _nouns(_PLACES),
        "shop": _nouns(_SHOPS),
        "event": _nouns(_EVENTS),
        "document": _nouns(_DOCUMENTS),
        "text": _nouns(_TEXTS),
        "group": table("en de", _GROUPS),
        "content": table("en de where_en where_de", _CONTENTS),
        "city": cities,
        "route": ordered_pairs(cities),
        "country": _countries(),
        "language": languages,
        "languages": ordered_pairs(languages),
    }


def _names() -> Slot:
    """First names, women and men in turn; the forms of `_people`."""
    return [
        dict.fromkeys(("en", "de", "acc", "dat"), name) | {"gen": f"von {name}"} | _PRONOUNS[gender]
        for couple in zip(_WOMEN, _MEN, strict=True)
        for name, gender in zip(couple, "fm", strict=True)
    ]


def _people() -> Slot:
    """Names and relatives: "acc", "dat" and "gen" are cases, "he", "his", "er" and "sein" (a stem) pronouns."""
    relatives = [
        row | {"en": f"my {row['en']}"} | _PRONOUNS[row["gender"]]
        for row in table("en de acc dat gen gender", _RELATIVES)
    ]
    return _names() + relatives


def _couples() -> Slot:
    """A woman and a man."""
    return [{"en": f"{woman} and {man}", "de": f"{woman} und {man}"} for woman, man in zip(_WOMEN, _MEN, strict=True)]


def _nouns(rows: str) -> Slot:
    """Nouns: "en_a" has the English article, "der" and "dem" are articles, "ein" that of the accusative."""
    return [row | {"en_a": a_or_an(row["en"])} | _GENDERS[row["gender"]] for row in table("en de gender", rows)]


def _described(adjective: Item, noun: Item) -> Item:
    english = f"{adjective['en']} {noun['en']}"
    accusative = f"{adjective['stem']}{noun['adj']} {noun['de']}"
    return {
        "en": english,
        "en_a": a_or_an(english),
        "the": f"{noun['der']} {adjective['stem']}e {noun['de']}",
        "a": f"{noun['ein']} {accusative}",
        "acc": accusative,
        "ending": noun["ending"],
    }


def _countries() -> Slot:
    """Countries: "in", "to" and "from" are prepositional phrases with the article that the country takes."""
    items = []
    for code in _COUNTRIES.split():
        gender = _COUNTRY_GENDERS.get(code, "")
        english, german = territory(code, "en"), territory(code, "de")
        phrases = {form: phrase.format(german) for form, phrase in _COUNTRY_PHRASES[gender].items()}
        if gender == "plural":
            english = f"the {english}"
            if not german.endswith("n"):
                phrases |= {form: f"{phrases[form]}n" for form in ("in", "from")}
        items.append({"en": english} | phrases)
    return items


def _languages() -> Slot:
    """Languages whose names decline as adjectives: "Deutsch", "aus dem Deutschen"."""
    return [{code: language(tag, code) for code in ("en", "de")} for tag in _LANGUAGES.split()]
