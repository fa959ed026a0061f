"""The English-French sentence frames; `training/builtin_frames.py` says what a frame is and how to add one.

The slots are those of `training/builtin_cldr.py`, `training/builtin_phrases.py` and `training/builtin_words_fr.py`.
"""

TEMPLATES = (
    # Dates
    (
        "{someone[en]} was born on {date[en]}.",
        "{someone[fr]} est né{someone[e]} le {date[fr]}.",
    ),
    (
        "The {event[en]} takes place on {date[en_weekday]}, {date[en]}.",
        "{event[le]} a lieu le {date[fr_weekday]} {date[fr]}.",
    ),
    (
        "The {document[en]} is dated {date[en_short]}.",
        "{document[le]} est daté{document[e]} du {date[fr_short]}.",
    ),
    (
        "{today[en]} {date[en_weekday]}, {date[en]}.",
        "{today[fr]} le {date[fr_weekday]} {date[fr]}.",
    ),
    (
        "{couple[en]} have been married since {year_month[en]}.",
        "{couple[fr]} sont mariés depuis {year_month[fr]}.",
    ),
    (
        "{who[en]} always goes to {city[en]} in {month[en]}.",
        "En {month[fr]}, {who[fr]} va toujours à {city[fr]}.",
    ),
    (
        "The {shop[en]} is closed on {weekdays[en1]}s, but it is open until {evening[en]} on {weekdays[en2]}s.",
        "Le {weekdays[fr1]}, {shop[le]} est fermé{shop[e]}, "
        "mais le {weekdays[fr2]}, {shop[il]} est ouvert{shop[e]} jusqu'à {evening[fr]}.",
    ),
    # Times
    (
        "The train to {city[en]} leaves at {departure[en]} from platform {platform[en]}.",
        "Le train pour {city[fr]} part du quai {platform[fr]} à {departure[fr]}.",
    ),
    (
        "The {shop[en]} opens at {morning[en]} and closes at {evening[en]}.",
        "{shop[le]} ouvre à {morning[fr]} et ferme à {evening[fr]}.",
    ),
    (
        "On {weekday[en]}s, {name[en]} gets up at {early[en]}.",
        "Le {weekday[fr]}, {name[fr]} se lève à {early[fr]}.",
    ),
    (
        "We are meeting at {time[en]} in front of the {place[en]}.",
        "Nous nous retrouvons à {time[fr]} devant {place[le]}.",
    ),
    (
        "The film starts at {evening[en]} and lasts {film_length[en]}.",
        "Le film commence à {evening[fr]} et dure {film_length[fr]}.",
    ),
    (
        "Can you wake {who[en]} at {early[en]}?",
        "Pouvez-vous réveiller {who[fr]} à {early[fr]} ?",
    ),
    # Numbers
    (
        "{sum[en_a]} plus {sum[en_b]} is {sum[en_sum]}.",
        "{sum[fr_a]} plus {sum[fr_b]} égale {sum[fr_sum]}.",
    ),
    (
        "How much is {number1[en_words]} {operator[en]} {number2[en_words]}?",
        "Combien font {number1[fr_words]} {operator[fr]} {number2[fr_words]} ?",
    ),
    (
        "There are {count[en_words]} {content[en]} {content[where_en]}.",
        "Il y a {count[fr_words]} {content[fr]} {content[where_fr]}.",
    ),
    (
        "There are {feminine_count[en]} {feminine_content[en]} {feminine_content[where_en]}.",
        "Il y a {feminine_count[fr]} {feminine_content[fr]} {feminine_content[where_fr]}.",
    ),
    (
        "{who[en]} came {rank[en]} in the {contest[en]}.",
        "{who[fr]} est arrivé{who[e]} {rank[fr]} {contest[fr]}.",
    ),
    (
        "About {visitors[en]} people visited {city[en]} last month.",
        "Le mois dernier, environ {visitors[fr]} personnes ont visité {city[fr]}.",
    ),
    (
        "{percent[en]} of the {group[en]} {action[en]}.",
        "{percent[fr]} des {group[fr]} {action[fr]}.",
    ),
    (
        "{percent[en]} of the {group[en]} are satisfied with the result.",
        "{percent[fr]} des {group[fr]} sont satisfait{group[e]}s du résultat.",
    ),
    (
        "Please read the {text[en]} on page {page[en_words]}.",
        "Veuillez lire {text[le]} à la page {page[fr_words]}.",
    ),
    (
        "Only {sold[en]} of the {tickets[en]} tickets have been sold.",
        "Seulement {sold[fr]} des {tickets[fr]} billets ont été vendus.",
    ),
    # Prices
    (
        "The {thing[en]} costs {price[en]}.",
        "{thing[le]} coûte {price[fr]}.",
    ),
    (
        "{someone[en]} paid {high_price[en]} for {thing[en_a]}.",
        "{someone[fr]} a payé {high_price[fr]} pour {thing[un]}.",
    ),
    (
        "{who[en]} still owes me {money[en]}.",
        "{who[fr]} me doit encore {money[fr]}.",
    ),
    (
        "{fare[en]} to {city[en]} are available from {high_price[en]}.",
        "On trouve des {fare[fr]} pour {city[fr]} à partir de {high_price[fr]}.",
    ),
    (
        "Can you lend me {below_hundred[en_words]} {note[en]} until {weekday[en]}?",
        "Pouvez-vous me prêter {below_hundred[fr_words]} {note[fr]} jusqu'à {weekday[fr]} ?",
    ),
    (
        "{container[en]} of {fruit[en]} costs {small_price[en]}.",
        "{container[fr]} {fruit[fr]} coûte {small_price[fr]}.",
    ),
    (
        "Instead of {old_price[en]}, the {thing[en]} now costs only {new_price[en]}.",
        "Au lieu de {old_price[fr]}, {thing[le]} ne coûte plus que {new_price[fr]}.",
    ),
    # Measures
    (
        "For the {dish[en]}, you need {grams[en]} of {ingredient[en]} and {handful[en_words]} eggs.",
        "Pour {dish[fr]}, il faut {grams[fr]} {ingredient[fr]} et {handful[fr_words]} œufs.",
    ),
    (
        "It is still {far[en]} to {city[en]}.",
        "Il y a encore {far[fr]} jusqu'à {city[fr]}.",
    ),
    (
        "{name[en]} is {height[en]} tall and weighs {kilograms[en]}.",
        "{name[fr]} mesure {height[fr]} et pèse {kilograms[fr]}.",
    ),
    (
        "{weather[en]} {temperature[en]} in {city[en]}.",
        "{weather[fr]} {temperature[fr]} à {city[fr]}.",
    ),
    (
        "The apartment has {area[en]} and {handful[en_words]} rooms and costs {rent[en]} a month.",
        "L'appartement a {handful[fr_words]} pièces, mesure {area[fr]} et coûte {rent[fr]} par mois.",
    ),
    (
        "{road[en]}, {vehicle[en]} may travel at up to {speed[en]}.",
        "{road[fr]}, {vehicle[fr]} peuvent rouler jusqu'à {speed[fr]}.",
    ),
    (
        "On {weekday[en]}, {someone[en]} {sport[en]} {near[en]}.",
        "{weekday[fr]}, {someone[fr]} {sport[fr]} {near[fr]}.",
    ),
    (
        "The package from {city[en]} weighs {grams[en]} and is {centimeters[en]} long.",
        "Le colis {city[de]} pèse {grams[fr]} et mesure {centimeters[fr]} de long.",
    ),
    # Ages
    (
        "{who[en]} is {below_hundred[en_words]} years old.",
        "{who[fr]} a {below_hundred[fr_words]} ans.",
    ),
    (
        "{someone[en]} turns {adult_age[en_words]} in {month[en]}.",
        "{someone[fr]} aura {adult_age[fr_words]} ans en {month[fr]}.",
    ),
    (
        "When {someone[en]} was {few[en_words]} years old, {someone[he]} moved to {country[en]}.",
        "Quand {someone[fr]} avait {few[fr_words]} ans, {someone[il]} a déménagé {country[in]}.",
    ),
    # Countries
    (
        "{someone[en]} comes from {country[en]} and speaks {language[en]}.",
        "{someone[fr]} vient {country[from]} et parle {language[fr]}.",
    ),
    (
        "{someone[en]} would like to go to {country[en]} {when[en]}.",
        "{when[fr]}, {someone[fr]} aimerait aller {country[in]}.",
    ),
    (
        "{who[en]} has never been to {country[en]}.",
        "{who[fr]} n'est jamais allé{who[e]} {country[in]}.",
    ),
    (
        "{who[en]} wants to discover {country[en]}.",
        "{who[fr]} veut découvrir {country[le]}.",
    ),
    (
        "These {good[en]} come from {country[en]}.",
        "Ces {good[fr]} viennent {country[from]}.",
    ),
    (
        "Because {someone[en]} lives in {country[en]}, {someone[he]} has to learn {language[en]}.",
        "Comme {someone[fr]} habite {country[in]}, {someone[il]} doit apprendre {language[le]}.",
    ),
    (
        "Do you speak {languages[en1]} or {languages[en2]}?",
        "Parlez-vous {languages[fr1]} ou {languages[fr2]} ?",
    ),
    (
        "For me, {languages[en1]} is {comparison[en]} than {languages[en2]}.",
        "Pour moi, {languages[le1]} est {comparison[fr]} que {languages[le2]}.",
    ),
    (
        "The {text[en]} was translated from {languages[en1]} into {languages[en2]}.",
        "{text[le]} a été traduit{text[e]} {languages[du1]} en {languages[fr2]}.",
    ),
    # Relative times
    (
        "The {transport[en]} to {city[en]} left {just_past[en]}.",
        "{transport[fr]} pour {city[fr]} est parti {just_past[fr]}.",
    ),
    (
        "{someone[en]} will come back from {city[en]} {future[en]}.",
        "{someone[fr]} reviendra {city[de]} {future[fr]}.",
    ),
    (
        "{someone[en]} bought {thing[en_a]} {past[en]}.",
        "{someone[fr]} a acheté {thing[un]} {past[fr]}.",
    ),
    (
        "I have been learning {language[en]} for {few[en_words]} {period[en]}.",
        "J'apprends {language[le]} depuis {few[fr_words]} {period[fr]}.",
    ),
    (
        "I have been waiting for {who[en]} for {minutes[en]}.",
        "J'attends {who[fr]} depuis {minutes[fr]}.",
    ),
    (
        "The train from {route[en1]} to {route[en2]} is {delay[en]} late.",
        "Le train {route[de1]} à {route[fr2]} a {delay[fr]} de retard.",
    ),
    # Things and places
    (
        "I gave {who[en]} {described[en_a]}.",
        "J'ai offert {described[un]} à {who[fr]}.",
    ),
    (
        "The {described[en]} belongs to {who[en]}.",
        "{described[le]} appartient à {who[fr]}.",
    ),
    (
        "{who[en]} cannot find {who[his]} {described[en]}.",
        "{who[fr]} ne trouve pas {described[son]}.",
    ),
    (
        "{who[en]} would like to buy this {described[en]}.",
        "{who[fr]} voudrait acheter {described[ce]}.",
    ),
    (
        "The {described[en]} is {position[en]} the {furniture[en]}.",
        "{described[le]} est {position[fr]} {furniture[le]}.",
    ),
    (
        "The {described[en]} is next to the {furniture[en]}.",
        "{described[le]} est à côté {furniture[du]}.",
    ),
    (
        "{who[en]} says that the {excess[en]} is too {excess[quality]}.",
        "{who[fr]} dit que {excess[le]} est trop {excess[qualité]}.",
    ),
    (
        "{who[en]}'s {excess[en]} is too {excess[quality]} for me.",
        "{excess[le]} {who[de]} est trop {excess[qualité]} pour moi.",
    ),
    (
        "{name[en]} does not have {things[en_a1]}, but {name[he]} has {things[en_a2]}.",
        "{name[fr]} n'a pas {things[de1]}, mais {name[il]} a {things[un2]}.",
    ),
    (
        "{who[en]} is walking from the {walk[en1]} to the {walk[en2]}.",
        "{who[fr]} marche {walk[du1]} {walk[au2]}.",
    ),
)
