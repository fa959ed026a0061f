"""Words and phrases of the sentence frames that need no further forms: English, German, French.

Where the grammar of a frame asks for it, a phrase has its article or preposition with it.
"""

from training.builtin_frames import Slot, table

_PHRASES = {
    "today": """
        today is | heute ist | aujourd'hui, c'est
        yesterday was | gestern war | hier, c'était
        tomorrow will be | morgen ist | demain, ce sera
        """,
    "weather": """
        today it is | heute sind es | aujourd'hui, il fait
        yesterday it was | gestern waren es | hier, il faisait
        tomorrow it will be | morgen werden es | demain, il fera
        """,
    "operator": """
        plus | plus | plus
        minus | minus | moins
        times | mal | fois
        """,
    "contest": """
        race | im Rennen | de la course
        competition | im Wettbewerb | du concours
        tournament | im Turnier | du tournoi
        """,
    "action": """
        live in the city | wohnen in der Stadt | habitent en ville
        were against the plan | waren gegen den Plan | étaient contre le projet
        have taken part | haben teilgenommen | ont participé
        have answered the questions | haben die Fragen beantwortet | ont répondu aux questions
        know the new rules | kennen die neuen Regeln | connaissent les nouvelles règles
        """,
    "fare": """
        flights | Flüge | vols
        train tickets | Zugfahrkarten | billets de train
        bus tickets | Busfahrkarten | billets de bus
        """,
    "note": """
        euros | Euro | euros
        dollars | Dollar | dollars
        """,
    "container": """
        a kilo | ein Kilo | un kilo
        a bag | ein Beutel | un sac
        a box | eine Kiste | une caisse
        """,
    "fruit": """
        apples | Äpfel | de pommes
        pears | Birnen | de poires
        cherries | Kirschen | de cerises
        oranges | Orangen | d'oranges
        apricots | Aprikosen | d'abricots
        bananas | Bananen | de bananes
        carrots | Karotten | de carottes
        potatoes | Kartoffeln | de pommes de terre
        onions | Zwiebeln | d'oignons
        mushrooms | Pilze | de champignons
        """,
    "dish": """
        cake | den Kuchen | le gâteau
        dessert | den Nachtisch | le dessert
        bread | das Brot | le pain
        waffles | die Waffeln | les gaufres
        pancakes | die Pfannkuchen | les crêpes
        cookies | die Kekse | les biscuits
        """,
    "ingredient": """
        flour | Mehl | de farine
        sugar | Zucker | de sucre
        butter | Butter | de beurre
        cream | Sahne | de crème
        chocolate | Schokolade | de chocolat
        honey | Honig | de miel
        almonds | Mandeln | d'amandes
        raisins | Rosinen | de raisins secs
        """,
    "vehicle": """
        cars | Autos | les voitures
        trucks | Lastwagen | les camions
        motorcycles | Motorräder | les motos
        buses | Busse | les bus
        tractors | Traktoren | les tracteurs
        taxis | Taxis | les taxis
        """,
    "road": """
        on this road | auf dieser Straße | sur cette route
        on this bridge | auf dieser Brücke | sur ce pont
        on the highway | auf der Autobahn | sur l'autoroute
        in this village | in diesem Dorf | dans ce village
        in this tunnel | in diesem Tunnel | dans ce tunnel
        in the city | in der Stadt | en ville
        in front of the school | vor der Schule | devant l'école
        """,
    "sport": """
        ran | gelaufen | a couru
        swam | geschwommen | a nagé
        walked | zu Fuß gegangen | a marché
        """,
    "when": """
        next week | nächste Woche | la semaine prochaine
        next month | nächsten Monat | le mois prochain
        next year | nächstes Jahr | l'année prochaine
        next summer | nächsten Sommer | l'été prochain
        next winter | nächsten Winter | l'hiver prochain
        in the spring | im Frühling | au printemps
        in the fall | im Herbst | en automne
        """,
    "comparison": """
        harder | schwieriger | plus difficile
        easier | leichter | plus facile
        more important | wichtiger | plus important
        more beautiful | schöner | plus beau
        """,
    "good": """
        tomatoes | Tomaten | tomates
        lemons | Zitronen | citrons
        grapes | Trauben | raisins
        flowers | Blumen | fleurs
        spices | Gewürze | épices
        shoes | Schuhe | chaussures
        toys | Spielsachen | jouets
        carpets | Teppiche | tapis
        machines | Maschinen | machines
        clocks | Uhren | horloges
        """,
    "transport": """
        bus | der Bus | le bus
        train | der Zug | le train
        coach | der Reisebus | l'autocar
        """,
    "period": """
        days | Tagen | jours
        weeks | Wochen | semaines
        months | Monaten | mois
        years | Jahren | ans
        """,
    "position": """
        under | unter | sous
        behind | hinter | derrière
        in front of | vor | devant
        between the wall and | zwischen der Wand und | entre le mur et
        """,
}


def phrase_slots() -> dict[str, Slot]:
    """The slots by name, their items with the forms "en", "de" and "fr"."""
    return {name: table("en de fr", rows) for name, rows in _PHRASES.items()}
