"""The words of the English-French sentence frames, as slots; `training/builtin_frames.py` says what a slot is.

"en" is the English form and "fr" the French one; the functions name the further forms of their items.
"""

from training.builtin_cldr import language, numbers, territory
from training.builtin_frames import Item, Slot, a_or_an, ordered_pairs, table

# In front of these the article and "de" elide. No noun below has an aspirated h, but countries and cities do.
_VOWELS = tuple("aeéèêiîoôuhœAEÉÈÊIÎOÔUŒ")
_WOMEN = ("Anna", "Clara", "Emma", "Julia", "Laura", "Maria", "Nina", "Sarah")
_MEN = ("Adrian", "Ben", "David", "Felix", "Martin", "Oscar", "Paul", "Thomas")
_RELATIVES = """
mother | ma mère | f
father | mon père | m
sister | ma sœur | f
brother | mon frère | m
aunt | ma tante | f
uncle | mon oncle | m
daughter | ma fille | f
son | mon fils | m
"""
# "e" is the ending of a participle that agrees.
_PRONOUNS = {
    "f": {"he": "she", "his": "her", "il": "elle", "e": "e"},
    "m": {"he": "he", "his": "his", "il": "il", "e": ""},
}
_THINGS = """
umbrella | parapluie | m
coat | manteau | m
computer | ordinateur | m
hat | chapeau | m
pencil | crayon | m
bag | sac | m
camera | appareil photo | m
book | livre | m
bicycle | vélo | m
knife | couteau | m
key | clé | f
suitcase | valise | f
lamp | lampe | f
jacket | veste | f
bottle | bouteille | f
guitar | guitare | f
watch | montre | f
shirt | chemise | f
dress | robe | f
scarf | écharpe | f
"""
_FURNITURE = """
cupboard | placard | m
armchair | fauteuil | m
bed | lit | m
sofa | canapé | m
piano | piano | m
staircase | escalier | m
table | table | f
chair | chaise | f
door | porte | f
window | fenêtre | f
shelf | étagère | f
"""
_PLACES = """
airport | aéroport | m
park | parc | m
museum | musée | m
cinema | cinéma | m
market | marché | m
hospital | hôpital | m
hotel | hôtel | m
train station | gare | f
school | école | f
church | église | f
pharmacy | pharmacie | f
library | bibliothèque | f
"""
_SHOPS = """
supermarket | supermarché | m
museum | musée | m
restaurant | restaurant | m
market | marché | m
bakery | boulangerie | f
pharmacy | pharmacie | f
library | bibliothèque | f
swimming pool | piscine | f
"""
_EVENTS = """
concert | concert | m
wedding | mariage | m
exam | examen | m
game | match | m
course | cours | m
meeting | réunion | f
exhibition | exposition | f
lecture | conférence | f
"""
_DOCUMENTS = """
contract | contrat | m
newspaper | journal | m
certificate | certificat | m
invoice | facture | f
letter | lettre | f
photo | photo | f
"""
_TEXTS = """
novel | roman | m
article | article | m
poem | poème | m
story | histoire | f
"""
# English, masculine, masculine in front of a vowel, feminine.
_ADJECTIVES_BEFORE = """
new | nouveau | nouvel | nouvelle
beautiful | beau | bel | belle
old | vieux | vieil | vieille
big | grand | grand | grande
small | petit | petit | petite
"""
_ADJECTIVES_BEHIND = """
heavy | lourd | lourd | lourde
expensive | cher | cher | chère
red | rouge | rouge | rouge
green | vert | vert | verte
black | noir | noir | noire
"""
# The adjectives that a thing can have too much of.
_EXCESSIVE = ("old", "big", "small", "heavy", "expensive")
_CITIES = """
Munich | Munich
Vienna | Vienne
Cologne | Cologne
Prague | Prague
Rome | Rome
Milan | Milan
Venice | Venise
Warsaw | Varsovie
Brussels | Bruxelles
Geneva | Genève
Lisbon | Lisbonne
Copenhagen | Copenhague
Athens | Athènes
Edinburgh | Édimbourg
Barcelona | Barcelone
Hamburg | Hambourg
London | Londres
Paris | Paris
"""
# Countries by the gender that their French names have; those without one take no article.
_COUNTRIES = {
    "f": """
        AL AR AT AU BE BG BO CH CN CO CZ DE DZ EE EG ES FI FR GR HR HU ID IE IN IS IT KR LT LV NO NZ PL RO RS RU SE SI
        SK TH TN UA ZA
        """,
    "m": "BR CA CL DK EC GB IR JP KE LU MA MX NP PE PT SN UY",
    "plural": "NL PH US",
    "": "CU CY MG MT SG",
}
_WITH_ENGLISH_ARTICLE = ("GB", "NL", "PH", "US")
_LANGUAGES = """
    de en fr es it pt nl da sv fi is ga et lv lt pl cs sk hr sr bg ro ru uk el tr ar fa th vi id zh ja ko ka hy
"""
_GROUPS = """
students | étudiants | m
residents | habitants | m
members | membres | m
customers | clients | m
patients | patients | m
voters | électeurs | m
families | familles | f
companies | entreprises | f
"""
_MASCULINE_CONTENTS = """
books | livres | in the library | dans la bibliothèque
children | enfants | in the school | à l'école
trees | arbres | in the park | dans le parc
pictures | tableaux | in the museum | au musée
beds | lits | in the hospital | à l'hôpital
seats | sièges | in the cinema | au cinéma
"""
_FEMININE_CONTENTS = """
rooms | chambres | in the hotel | à l'hôtel
chairs | chaises | in the church | dans l'église
flowers | fleurs | in the garden | dans le jardin
houses | maisons | in this village | dans ce village
stores | boutiques | at the airport | à l'aéroport
cars | voitures | in the parking lot | sur le parking
"""


def word_slots() -> dict[str, Slot]:
    """The slots by name."""
    people = _people()
    things, places, languages = _nouns(_THINGS), _nouns(_PLACES), _languages()
    cities = [city | {"de": _de(city["fr"])} for city in table("en fr", _CITIES)]
    return {
        "who": people,
        # Fewer of them, where other slots of a frame are large.
        "someone": people[::3],
        "name": _names(),
        "couple": _couples(),
        "thing": things,
        "things": ordered_pairs(things),
        "described": _described_things(),
        "excess": _excesses(),
        "furniture": _nouns(_FURNITURE),
        "place": places,
        "walk": ordered_pairs(places),
        "shop": _nouns(_SHOPS),
        "event": _nouns(_EVENTS),
        "document": _nouns(_DOCUMENTS),
        "text": _nouns(_TEXTS),
        "group": [row | _PRONOUNS[row["gender"]] for row in table("en fr gender", _GROUPS)],
        "content": table("en fr where_en where_fr", _MASCULINE_CONTENTS),
        "feminine_content": table("en fr where_en where_fr", _FEMININE_CONTENTS),
        "feminine_count": _feminine_counts(),
        "city": cities,
        "route": ordered_pairs(cities),
        "country": _countries(),
        "language": languages,
        "languages": ordered_pairs(languages),
    }


def _de(phrase: str) -> str:
    return f"d'{phrase}" if phrase.startswith(_VOWELS) else f"de {phrase}"


def _with_articles(phrase: str, gender: str) -> Item:
    """The forms "le", "un", "ce", "son", "du" (de + le), "au" (à + le) and "de" of a singular, gender "m" or "f"."""
    feminine = gender == "f"
    forms = {"un": f"une {phrase}" if feminine else f"un {phrase}", "de": _de(phrase)}
    if phrase.startswith(_VOWELS):
        this = "cette" if feminine else "cet"
        elided = f"l'{phrase}"
        return forms | {
            "le": elided,
            "du": f"de {elided}",
            "au": f"à {elided}",
            "ce": f"{this} {phrase}",
            "son": f"son {phrase}",
        }
    articles = (
        {"le": "la", "du": "de la", "au": "à la", "ce": "cette", "son": "sa"}
        if feminine
        else {"le": "le", "du": "du", "au": "au", "ce": "ce", "son": "son"}
    )
    return forms | {form: f"{article} {phrase}" for form, article in articles.items()}


def _names() -> Slot:
    """First names, women and men in turn; the forms of `_people`."""
    return [
        {"en": name, "fr": name, "de": _de(name)} | _PRONOUNS[gender]
        for couple in zip(_WOMEN, _MEN, strict=True)
        for name, gender in zip(couple, "fm", strict=True)
    ]


def _people() -> Slot:
    """Names and relatives: "de" is the form behind "de"; "he", "his" and "il" are pronouns, "e" a participle's end."""
    relatives = [
        {"en": f"my {row['en']}", "fr": row["fr"], "de": _de(row["fr"])} | _PRONOUNS[row["gender"]]
        for row in table("en fr gender", _RELATIVES)
    ]
    return _names() + relatives


def _couples() -> Slot:
    """A woman and a man."""
    return [{"en": f"{woman} and {man}", "fr": f"{woman} et {man}"} for woman, man in zip(_WOMEN, _MEN, strict=True)]


def _nouns(rows: str) -> Slot:
    """Nouns with the forms of `_with_articles`, "en_a" with the English one, and "il" and "e" as of people."""
    return [
        row | {"en_a": a_or_an(row["en"])} | _PRONOUNS[row["gender"]] | _with_articles(row["fr"], row["gender"])
        for row in table("en fr gender", rows)
    ]


def _described_things() -> Slot:
    """Things with an adjective, with the forms of `_with_articles` and "en_a"."""
    adjectives = [(adjective, True) for adjective in table("en m vowel f", _ADJECTIVES_BEFORE)]
    adjectives += [(adjective, False) for adjective in table("en m vowel f", _ADJECTIVES_BEHIND)]
    items = []
    for adjective, before in adjectives:
        for row in table("en fr gender", _THINGS):
            noun, gender = row["fr"], row["gender"]
            if before:
                agreeing = adjective["vowel" if gender == "m" and noun.startswith(_VOWELS) else gender]
                phrase = f"{agreeing} {noun}"
            else:
                phrase = f"{noun} {adjective[gender]}"
            english = f"{adjective['en']} {row['en']}"
            items.append({"en": english, "en_a": a_or_an(english)} | _with_articles(phrase, gender))
    return items


def _excesses() -> Slot:
    """Things that are too big and the like: "quality" and "qualité" are the adjective, which agrees in French."""
    adjectives = table("en m vowel f", _ADJECTIVES_BEFORE) + table("en m vowel f", _ADJECTIVES_BEHIND)
    return [
        {"en": thing["en"], "le": thing["le"], "quality": adjective["en"], "qualité": adjective[thing["gender"]]}
        for adjective in adjectives
        if adjective["en"] in _EXCESSIVE
        for thing in _nouns(_THINGS)
    ]


def _feminine_counts() -> Slot:
    """Numbers in words in front of feminine nouns: "vingt et une"."""
    return [
        {"en": number["en_words"], "fr": number["fr_words"] + ("e" if number["fr_words"].endswith("un") else "")}
        for number in numbers("fr", range(2, 1000))
    ]


def _countries() -> Slot:
    """Countries: "le" has the article, "in" is the place and the direction, "from" the origin."""
    items = []
    for gender, codes in _COUNTRIES.items():
        for code in codes.split():
            name, english = territory(code, "fr"), territory(code, "en")
            items.append(
                {"en": f"the {english}" if code in _WITH_ENGLISH_ARTICLE else english} | _country_phrases(name, gender)
            )
    return items


def _country_phrases(name: str, gender: str) -> Item:
    if gender == "plural":
        return {"le": f"les {name}", "in": f"aux {name}", "from": f"des {name}"}
    if gender == "":
        return {"le": name, "in": f"à {name}", "from": _de(name)}
    article = _with_articles(name, gender)["le"]
    if gender == "f" or name.startswith(_VOWELS):
        return {"le": article, "in": f"en {name}", "from": _de(name)}
    return {"le": article, "in": f"au {name}", "from": f"du {name}"}


def _languages() -> Slot:
    """Languages, all masculine, with the forms of `_with_articles`."""
    return [
        {"en": language(tag, "en"), "fr": language(tag, "fr")} | _with_articles(language(tag, "fr"), "m")
        for tag in _LANGUAGES.split()
    ]
