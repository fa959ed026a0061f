"""The built-in corpus: golden sentences, splits without overlap, one translation a sentence, determinism, errors."""

import os
import re
import subprocess
import sys
from collections import Counter
from itertools import chain
from pathlib import Path

import pytest

from training.builtin import LANGUAGE_PAIRS, Pair, builtin_corpus, corpus_frames
from training.builtin_frames import Frame

Corpus = dict[str, list[Pair]]

LANGS = ("de", "fr")

GOLDEN = {
    "de": {
        # Spelled out numbers
        "My aunt is twenty-one years old.": "Meine Tante ist einundzwanzig Jahre alt.",
        "Thirty plus eighteen is forty-eight.": "Dreißig plus achtzehn ist achtundvierzig.",
        "One plus one is two.": "Eins plus eins ist zwei.",
        "There are three hundred and twenty-one trees in the park.": "Im Park gibt es dreihunderteinundzwanzig Bäume.",
        "My son came twenty-first in the race.": "Mein Sohn hat im Rennen den einundzwanzigsten Platz belegt.",
        # Localized digits
        "Only 260 of the 18,250 tickets have been sold.": "Von den 18.250 Karten sind erst 260 verkauft worden.",
        "25.5% of the children have taken part.": "25,5 % der Kinder haben teilgenommen.",
        "Ben paid £25.00 for a watch.": "Ben hat 25,00 £ für eine Armbanduhr bezahlt.",
        "Sarah still owes me 88 Swiss francs.": "Sarah schuldet mir noch 88 Schweizer Franken.",
        "Paul is 1.88 meters tall and weighs 52 kilograms.": "Paul ist 1,88 Meter groß und wiegt 52 Kilogramm.",
        # Dates and times, separable verbs
        "The meeting takes place on Friday, March 22, 2024.": (
            "Die Besprechung findet am Freitag, dem 22. März 2024, statt."
        ),
        "On Saturdays, Oscar gets up at 6:20 AM.": "Samstags steht Oscar um 06:20 Uhr auf.",
        "The train to Vienna leaves at 7:15 PM from platform 7.": (
            "Der Zug nach Wien fährt um 19:15 Uhr von Gleis 7 ab."
        ),
        "My sister will come back from Rome in 3 weeks.": "Meine Schwester kommt in 3 Wochen aus Rom zurück.",
        "The bus to Cologne left 2 hours ago.": "Der Bus nach Köln ist vor 2 Stunden abgefahren.",
        "I have been learning Dutch for five days.": "Ich lerne seit fünf Tagen Niederländisch.",
        # Cases, genders and word order
        "I have been waiting for my brother for 20 minutes.": "Ich warte seit 20 Minuten auf meinen Bruder.",
        "I gave my brother a new coat.": "Ich habe meinem Bruder einen neuen Mantel geschenkt.",
        "I gave my mother an expensive dress.": "Ich habe meiner Mutter ein teures Kleid geschenkt.",
        "Anna cannot find her red bag.": "Anna kann ihre rote Tasche nicht finden.",
        "My father cannot find his old key.": "Mein Vater kann seinen alten Schlüssel nicht finden.",
        "My son's umbrella is too big for me.": "Der Regenschirm meines Sohnes ist mir zu groß.",
        "The new key is between the wall and the door.": "Der neue Schlüssel ist zwischen der Wand und der Tür.",
        "My father has never been to Iraq.": "Mein Vater ist noch nie im Irak gewesen.",
        "When Julia was ten years old, she moved to the Netherlands.": (
            "Als Julia zehn Jahre alt war, zog sie in die Niederlande."
        ),
        "These flowers come from the Netherlands.": "Diese Blumen kommen aus den Niederlanden.",
        "Because Anna lives in Switzerland, she has to learn French.": (
            "Weil Anna in der Schweiz wohnt, muss sie Französisch lernen."
        ),
        "Ben does not have a hat, but he has a jacket.": "Ben hat keinen Hut, aber er hat eine Jacke.",
        "The poem was translated from German into English.": (
            "Das Gedicht wurde aus dem Deutschen ins Englische übersetzt."
        ),
    },
    "fr": {
        # Spelled out numbers
        "My aunt is twenty-one years old.": "Ma tante a vingt et un ans.",
        "There are twenty-one trees in the park.": "Il y a vingt et un arbres dans le parc.",
        "There are twenty-one rooms in the hotel.": "Il y a vingt et une chambres à l'hôtel.",
        "There are five hundred and eighty beds in the hospital.": "Il y a cinq cent quatre-vingts lits à l'hôpital.",
        "My mother came seventeenth in the race.": "Ma mère est arrivée dix-septième de la course.",
        # Localized digits, with plain spaces
        "Only 260 of the 18,250 tickets have been sold.": "Seulement 260 des 18 250 billets ont été vendus.",
        "88.5% of the families are satisfied with the result.": "88,5 % des familles sont satisfaites du résultat.",
        "The scarf costs €52.90.": "L'écharpe coûte 52,90 €.",
        "Nina still owes me 69 euros.": "Nina me doit encore 69 euros.",
        # Dates and times
        "The concert takes place on Tuesday, November 1, 2022.": "Le concert a lieu le mardi 1er novembre 2022.",
        "My sister was born on September 19, 2015.": "Ma sœur est née le 19 septembre 2015.",
        "The bakery opens at 8:30 AM and closes at 9:00 PM.": "La boulangerie ouvre à 08:30 et ferme à 21:00.",
        "Can you wake Paul at 9:50 AM?": "Pouvez-vous réveiller Paul à 09:50 ?",
        "The coach to Lisbon left 2 hours ago.": "L'autocar pour Lisbonne est parti il y a 2 heures.",
        # Elision and contraction
        "A kilo of oranges costs €1.40.": "Un kilo d'oranges coûte 1,40 €.",
        "Julia will come back from Athens in 8 months.": "Julia reviendra d'Athènes dans 8 mois.",
        "I have been learning Italian for nine weeks.": "J'apprends l'italien depuis neuf semaines.",
        "The story was translated from English into German.": "L'histoire a été traduite de l'anglais en allemand.",
        "The novel was translated from Greek into Swedish.": "Le roman a été traduit du grec en suédois.",
        "My aunt is walking from the airport to the cinema.": "Ma tante marche de l'aéroport au cinéma.",
        "Anna's camera is too small for me.": "L'appareil photo d'Anna est trop petit pour moi.",
        "Paul does not have a computer, but he has a key.": "Paul n'a pas d'ordinateur, mais il a une clé.",
        # Genders of countries
        "My mother has never been to Canada.": "Ma mère n'est jamais allée au Canada.",
        "My father has never been to Iran.": "Mon père n'est jamais allé en Iran.",
        "Laura wants to discover the United States.": "Laura veut découvrir les États-Unis.",
        "These shoes come from the Netherlands.": "Ces chaussures viennent des Pays-Bas.",
        "These spices come from India.": "Ces épices viennent d'Inde.",
        "These toys come from Hungary.": "Ces jouets viennent de Hongrie.",
        "When Julia was seven years old, she moved to Cuba.": "Quand Julia avait sept ans, elle a déménagé à Cuba.",
        # Agreement of adjectives
        "I gave Martin an old computer.": "J'ai offert un vieil ordinateur à Martin.",
        "Paul would like to buy this black computer.": "Paul voudrait acheter cet ordinateur noir.",
        "Clara would like to buy this beautiful scarf.": "Clara voudrait acheter cette belle écharpe.",
        "Emma cannot find her green scarf.": "Emma ne trouve pas son écharpe verte.",
        "Emma cannot find her new suitcase.": "Emma ne trouve pas sa nouvelle valise.",
        "Sarah says that the shirt is too expensive.": "Sarah dit que la chemise est trop chère.",
        "The old bag is next to the sofa.": "Le vieux sac est à côté du canapé.",
    },
}


@pytest.fixture(scope="module")
def frames() -> dict[str, list[Frame]]:
    return {lang: corpus_frames(lang) for lang in LANGS}


@pytest.fixture(scope="module")
def pairs_of_frames(frames: dict[str, list[Frame]]) -> dict[str, list[list[Pair]]]:
    return {lang: [list(frame.pairs()) for frame in frames[lang]] for lang in LANGS}


@pytest.fixture(scope="module")
def corpora() -> dict[str, Corpus]:
    return {lang: builtin_corpus("en", lang) for lang in LANGS}


@pytest.mark.parametrize("lang", LANGS)
def test_golden_pairs(pairs_of_frames: dict[str, list[list[Pair]]], lang: str) -> None:
    translations = dict(chain.from_iterable(pairs_of_frames[lang]))
    assert {source: translations.get(source) for source in GOLDEN[lang]} == GOLDEN[lang]


@pytest.mark.parametrize("lang", LANGS)
def test_every_sentence_has_one_translation(pairs_of_frames: dict[str, list[list[Pair]]], lang: str) -> None:
    for side in (0, 1):
        counts = Counter(pair[side] for pair in chain.from_iterable(pairs_of_frames[lang]))
        assert [sentence for sentence, count in counts.most_common(3) if count > 1] == []


@pytest.mark.parametrize("lang", LANGS)
def test_sizes_and_disjoint_splits(corpora: dict[str, Corpus], lang: str) -> None:
    corpus = corpora[lang]
    assert {split: len(pairs) for split, pairs in corpus.items()} == {"train": 20_000, "validation": 500, "test": 500}
    pairs = [pair for split in corpus.values() for pair in split]
    for side in (0, 1):
        assert len({pair[side] for pair in pairs}) == 21_000


@pytest.mark.parametrize("lang", LANGS)
def test_frames_share_the_training_pairs(
    corpora: dict[str, Corpus], pairs_of_frames: dict[str, list[list[Pair]]], lang: str
) -> None:
    frames = pairs_of_frames[lang]
    assert len(frames) >= 40
    train = set(corpora[lang]["train"])
    fair_share = 20_000 / len(frames)
    for pairs in frames:
        assert 0.8 * fair_share < len(train.intersection(pairs)) < 1.2 * fair_share, pairs[0]


@pytest.mark.parametrize("lang", LANGS)
def test_sentences_are_well_formed(corpora: dict[str, Corpus], lang: str) -> None:
    flaw = re.compile(r"  |^ | $|[{}|]|None|[\u00a0\u202f\u2019]| [.,]|[^.?]$|[.,?][.,?]")
    for pair in corpora[lang]["train"]:
        for sentence in pair:
            assert not flaw.search(sentence), sentence
            assert 3 <= len(sentence.split()) <= 20, sentence
            assert sentence[0] == sentence[0].upper(), sentence


def flawed(pairs: list[Pair], side: int, pattern: str) -> list[str]:
    flaw = re.compile(pattern)
    return [pair[side] for pair in pairs if flaw.search(pair[side])][:5]


@pytest.mark.parametrize("lang", LANGS)
def test_english_grammar(corpora: dict[str, Corpus], lang: str) -> None:
    pairs = corpora[lang]["train"]
    assert flawed(pairs, 0, r"\b[Aa] [aeiou]|\b[Aa]n [^aeiou]|\bthe (the|my)\b") == []
    assert flawed(pairs, 0, r"(?<![-\w.,])(?<!and )(1|[Oo]ne) (?!plus|minus|times)\w{2,}s\b") == []


def test_german_grammar(corpora: dict[str, Corpus]) -> None:
    pairs = corpora["de"]["train"]
    assert flawed(pairs, 1, r"\b(vor|unter|hinter|neben|aus|seit) (das|die|\S+ (Tage|Monate|Jahre))\b") == []
    assert flawed(pairs, 1, r"\b(von|zu|in|an) dem\b|\beins [A-ZÄÖÜ]|\bEuros\b|[a-zäöüß][A-ZÄÖÜ]") == []
    assert flawed(pairs, 1, r"\b(einen|seinen|ihren|meinen) \w+e[sr]? [A-ZÄÖÜ]|\beine \w+e[nrs] [A-ZÄÖÜ]") == []


def test_french_grammar(corpora: dict[str, Corpus]) -> None:
    pairs = corpora["fr"]["train"]
    assert flawed(pairs, 1, r"\b([Ll]e|[Ll]a|[Dd]e|[Jj]e|[Nn]e) [aàeiouéèêâôîAEIOUÉÈÊœ]") == []
    assert flawed(pairs, 1, r"\b(de|à) (le|les) |\b(ma|sa|ce|beau|vieux|nouveau) [aàeiouéœ]") == []
    assert flawed(pairs, 1, r"'[^aàeiouéèêâôîhAEIOUÉÈÊœ]|\S\?|\ben (le|la) |\bun (chambre|chaise|fleur|maison)s") == []


@pytest.mark.parametrize(("source", "target"), LANGUAGE_PAIRS)
def test_reverse_direction_swaps_the_pairs(corpora: dict[str, Corpus], source: str, target: str) -> None:
    swapped = builtin_corpus(target, source)
    expected = {split: [(two, one) for one, two in pairs] for split, pairs in corpora[target].items()}
    assert swapped == expected


def test_defaults_are_english_to_german(corpora: dict[str, Corpus]) -> None:
    assert builtin_corpus() == corpora["de"]


def test_another_seed_gives_another_corpus(corpora: dict[str, Corpus]) -> None:
    other = builtin_corpus("en", "fr", seed=1)
    assert 0 < len(set(other["train"]) & set(corpora["fr"]["train"])) < 10_000


def test_independent_of_the_hash_seed() -> None:
    program = (
        "import hashlib; from training.builtin import builtin_corpus; "
        "corpus = builtin_corpus('en', 'fr', train_size=900, held_out_size=50); "
        "print(hashlib.sha256(repr(corpus).encode()).hexdigest())"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=Path(__file__).parents[1],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(outputs) == 1
    assert len(outputs.pop().strip()) == 64


def test_small_corpus() -> None:
    corpus = builtin_corpus("de", "en", train_size=3, held_out_size=2)
    assert {split: len(set(pairs)) for split, pairs in corpus.items()} == {"train": 3, "validation": 2, "test": 2}


def test_more_pairs_than_the_frames_can_give(frames: dict[str, list[Frame]]) -> None:
    available = sum(frame.size for frame in frames["de"])
    with pytest.raises(ValueError, match=rf"is {available + 1:,}, but en-de has {available:,} pairs$"):
        builtin_corpus(train_size=available - 999)


@pytest.mark.parametrize(("source", "target"), [("de", "fr"), ("en", "en"), ("en", "it"), ("", "")])
def test_unsupported_languages(source: str, target: str) -> None:
    expected = f"^no built-in corpus for {source}-{target}: there are en-de, de-en, en-fr, fr-en$"
    with pytest.raises(ValueError, match=expected):
        builtin_corpus(source, target)


@pytest.mark.parametrize("sizes", [{"train_size": 0}, {"held_out_size": 0}, {"train_size": -5}])
def test_sizes_below_one(sizes: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"^train_size and held_out_size must be at least 1, not -?\d+ and \d+$"):
        builtin_corpus(**sizes)  # type: ignore[arg-type]
