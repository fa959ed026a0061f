"""The English-German sentence frames; `training/builtin_frames.py` says what a frame is and how to add one.

The slots are those of `training/builtin_cldr.py`, `training/builtin_phrases.py` and `training/builtin_words_de.py`.
"""

TEMPLATES = (
    # Dates
    (
        "{someone[en]} was born on {date[en]}.",
        "{someone[de]} wurde am {date[de]} geboren.",
    ),
    (
        "The {event[en]} takes place on {date[en_weekday]}, {date[en]}.",
        "{event[der]} {event[de]} findet am {date[de_weekday]}, dem {date[de]}, statt.",
    ),
    (
        "The {document[en]} is dated {date[en_short]}.",
        "{document[der]} {document[de]} ist vom {date[de_short]}.",
    ),
    (
        "{today[en]} {date[en_weekday]}, {date[en]}.",
        "{today[de]} {date[de_weekday]}, der {date[de]}.",
    ),
    (
        "{couple[en]} have been married since {year_month[en]}.",
        "{couple[de]} sind seit {year_month[de]} verheiratet.",
    ),
    (
        "{who[en]} always travels to {city[en]} in {month[en]}.",
        "Im {month[de]} reist {who[de]} immer nach {city[de]}.",
    ),
    (
        "The {shop[en]} is closed on {weekdays[en1]}, but it is open until {evening[en]} on {weekdays[en2]}.",
        "Am {weekdays[de1]} ist {shop[der]} {shop[de]} geschlossen, "
        "aber am {weekdays[de2]} hat {shop[er]} bis {evening[de]} Uhr geöffnet.",
    ),
    # Times
    (
        "The train to {city[en]} leaves at {departure[en]} from platform {platform[en]}.",
        "Der Zug nach {city[de]} fährt um {departure[de]} Uhr von Gleis {platform[de]} ab.",
    ),
    (
        "The {shop[en]} opens at {morning[en]} and closes at {evening[en]}.",
        "{shop[der]} {shop[de]} öffnet um {morning[de]} Uhr und schließt um {evening[de]} Uhr.",
    ),
    (
        "On {weekday[en]}s, {name[en]} gets up at {early[en]}.",
        "{weekday[de]}s steht {name[de]} um {early[de]} Uhr auf.",
    ),
    (
        "We are meeting at {time[en]} in front of the {place[en]}.",
        "Wir treffen uns um {time[de]} Uhr vor {place[dem]} {place[de]}.",
    ),
    (
        "The film starts at {evening[en]} and lasts {film_length[en]}.",
        "Der Film beginnt um {evening[de]} Uhr und dauert {film_length[de]}.",
    ),
    (
        "Can you wake {who[en]} at {early[en]}?",
        "Können Sie {who[acc]} um {early[de]} Uhr wecken?",
    ),
    # Numbers
    (
        "{sum[en_a]} plus {sum[en_b]} is {sum[en_sum]}.",
        "{sum[de_a]} plus {sum[de_b]} ist {sum[de_sum]}.",
    ),
    (
        "How much is {number1[en_words]} {operator[en]} {number2[en_words]}?",
        "Wie viel ist {number1[de_words]} {operator[de]} {number2[de_words]}?",
    ),
    (
        "There are {count[en_words]} {content[en]} {content[where_en]}.",
        "{content[where_de]} gibt es {count[de_words]} {content[de]}.",
    ),
    (
        "{who[en]} came {rank[en]} in the {contest[en]}.",
        "{who[de]} hat {contest[de]} den {rank[de]}n Platz belegt.",
    ),
    (
        "About {visitors[en]} people visited {city[en]} last month.",
        "Letzten Monat haben etwa {visitors[de]} Menschen {city[de]} besucht.",
    ),
    (
        "{percent[en]} of the {group[en]} {action[en]}.",
        "{percent[de]} der {group[de]} {action[de]}.",
    ),
    (
        "Please read the {text[en]} on page {page[en_words]}.",
        "Bitte lesen Sie {text[den]} {text[de]} auf Seite {page[de_words]}.",
    ),
    (
        "Only {sold[en]} of the {tickets[en]} tickets have been sold.",
        "Von den {tickets[de]} Karten sind erst {sold[de]} verkauft worden.",
    ),
    # Prices
    (
        "The {thing[en]} costs {price[en]}.",
        "{thing[der]} {thing[de]} kostet {price[de]}.",
    ),
    (
        "{someone[en]} paid {high_price[en]} for {thing[en_a]}.",
        "{someone[de]} hat {high_price[de]} für {thing[ein]} {thing[de]} bezahlt.",
    ),
    (
        "{who[en]} still owes me {money[en]}.",
        "{who[de]} schuldet mir noch {money[de]}.",
    ),
    (
        "{fare[en]} to {city[en]} are available from {high_price[en]}.",
        "{fare[de]} nach {city[de]} gibt es ab {high_price[de]}.",
    ),
    (
        "Can you lend me {below_hundred[en_words]} {note[en]} until {weekday[en]}?",
        "Können Sie mir bis {weekday[de]} {below_hundred[de_words]} {note[de]} leihen?",
    ),
    (
        "{container[en]} of {fruit[en]} costs {small_price[en]}.",
        "{container[de]} {fruit[de]} kostet {small_price[de]}.",
    ),
    (
        "Instead of {old_price[en]}, the {thing[en]} now costs only {new_price[en]}.",
        "Statt {old_price[de]} kostet {thing[der]} {thing[de]} jetzt nur noch {new_price[de]}.",
    ),
    # Measures
    (
        "For the {dish[en]}, you need {grams[en]} of {ingredient[en]} and {handful[en_words]} eggs.",
        "Für {dish[de]} braucht man {grams[de]} {ingredient[de]} und {handful[de_words]} Eier.",
    ),
    (
        "It is still {far[en]} to {city[en]}.",
        "Bis {city[de]} sind es noch {far[de]}.",
    ),
    (
        "{name[en]} is {height[en]} tall and weighs {kilograms[en]}.",
        "{name[de]} ist {height[de]} groß und wiegt {kilograms[de]}.",
    ),
    (
        "{weather[en]} {temperature[en]} in {city[en]}.",
        "{weather[de]} in {city[de]} {temperature[de]}.",
    ),
    (
        "The apartment has {area[en]} and {handful[en_words]} rooms and costs {rent[en]} a month.",
        "Die Wohnung hat {area[de]} und {handful[de_words]} Zimmer und kostet {rent[de]} im Monat.",
    ),
    (
        "{road[en]}, {vehicle[en]} may travel at up to {speed[en]}.",
        "{road[de]} dürfen {vehicle[de]} bis zu {speed[de]} fahren.",
    ),
    (
        "On {weekday[en]}, {someone[en]} {sport[en]} {near[en]}.",
        "Am {weekday[de]} ist {someone[de]} {near[de]} {sport[de]}.",
    ),
    (
        "The package from {city[en]} weighs {grams[en]} and is {centimeters[en]} long.",
        "Das Paket aus {city[de]} wiegt {grams[de]} und ist {centimeters[de]} lang.",
    ),
    # Ages
    (
        "{who[en]} is {below_hundred[en_words]} years old.",
        "{who[de]} ist {below_hundred[de_words]} Jahre alt.",
    ),
    (
        "{someone[en]} turns {adult_age[en_words]} in {month[en]}.",
        "{someone[de]} wird im {month[de]} {adult_age[de_words]}.",
    ),
    (
        "When {someone[en]} was {few[en_words]} years old, {someone[he]} moved to {country[en]}.",
        "Als {someone[de]} {few[de_words]} Jahre alt war, zog {someone[er]} {country[to]}.",
    ),
    # Countries
    (
        "{someone[en]} comes from {country[en]} and speaks {language[en]}.",
        "{someone[de]} kommt {country[from]} und spricht {language[de]}.",
    ),
    (
        "{someone[en]} would like to travel to {country[en]} {when[en]}.",
        "{someone[de]} möchte {when[de]} {country[to]} reisen.",
    ),
    (
        "{who[en]} has never been to {country[en]}.",
        "{who[de]} ist noch nie {country[in]} gewesen.",
    ),
    (
        "These {good[en]} come from {country[en]}.",
        "Diese {good[de]} kommen {country[from]}.",
    ),
    (
        "Because {someone[en]} lives in {country[en]}, {someone[he]} has to learn {language[en]}.",
        "Weil {someone[de]} {country[in]} wohnt, muss {someone[er]} {language[de]} lernen.",
    ),
    (
        "Do you speak {languages[en1]} or {languages[en2]}?",
        "Sprechen Sie {languages[de1]} oder {languages[de2]}?",
    ),
    (
        "For me, {languages[en1]} is {comparison[en]} than {languages[en2]}.",
        "Für mich ist {languages[de1]} {comparison[de]} als {languages[de2]}.",
    ),
    (
        "The {text[en]} was translated from {languages[en1]} into {languages[en2]}.",
        "{text[der]} {text[de]} wurde aus dem {languages[de1]}en ins {languages[de2]}e übersetzt.",
    ),
    # Relative times
    (
        "The {transport[en]} to {city[en]} left {just_past[en]}.",
        "{transport[de]} nach {city[de]} ist {just_past[de]} abgefahren.",
    ),
    (
        "{someone[en]} will come back from {city[en]} {future[en]}.",
        "{someone[de]} kommt {future[de]} aus {city[de]} zurück.",
    ),
    (
        "{someone[en]} bought {thing[en_a]} {past[en]}.",
        "{someone[de]} hat sich {past[de]} {thing[ein]} {thing[de]} gekauft.",
    ),
    (
        "I have been learning {language[en]} for {few[en_words]} {period[en]}.",
        "Ich lerne seit {few[de_words]} {period[de]} {language[de]}.",
    ),
    (
        "I have been waiting for {who[en]} for {minutes[en]}.",
        "Ich warte seit {minutes[de]} auf {who[acc]}.",
    ),
    (
        "The train from {route[en1]} to {route[en2]} is {delay[en]} late.",
        "Der Zug von {route[de1]} nach {route[de2]} hat {delay[de]} Verspätung.",
    ),
    # Things
    (
        "I gave {who[en]} {described[en_a]}.",
        "Ich habe {who[dat]} {described[a]} geschenkt.",
    ),
    (
        "The {described[en]} belongs to {who[en]}.",
        "{described[the]} gehört {who[dat]}.",
    ),
    (
        "{who[en]} cannot find {who[his]} {described[en]}.",
        "{who[de]} kann {who[sein]}{described[ending]} {described[acc]} nicht finden.",
    ),
    (
        "The {described[en]} is {position[en]} the {furniture[en]}.",
        "{described[the]} ist {position[de]} {furniture[dem]} {furniture[de]}.",
    ),
    (
        "The {described[en]} is next to the {furniture[en]}.",
        "{described[the]} ist neben {furniture[dem]} {furniture[de]}.",
    ),
    (
        "{who[en]} says that the {thing[en]} is too {quality[en]}.",
        "{who[de]} sagt, dass {thing[der]} {thing[de]} zu {quality[de]} ist.",
    ),
    (
        "{who[en]}'s {thing[en]} is too {quality[en]} for me.",
        "{thing[der]} {thing[de]} {who[gen]} ist mir zu {quality[de]}.",
    ),
    (
        "{name[en]} does not have {things[en_a1]}, but {name[he]} has {things[en_a2]}.",
        "{name[de]} hat k{things[ein1]} {things[de1]}, aber {name[er]} hat {things[ein2]} {things[de2]}.",
    ),
)
