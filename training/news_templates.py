"""The phrases that synthetic news is made of: eight events and the sentences that they share.

Every pool ends with ``UNSEEN`` templates that training never uses. ``{who}`` is a person by job or by
surname, ``{first}`` a wrong figure, ``{n}`` the right one, ``{hero}`` is "{name}, a {job}".
A pool's templates tell the same fact.
"""

from __future__ import annotations

from dataclasses import dataclass

from training.words import words

UNSEEN = 2

JOBS = words(
    "baker nurse welder teacher sailor farmer plumber lawyer tailor miller porter dentist gardener "
    "painter butcher pilot banker carpenter librarian fisherman chemist driver cook weaver"
)
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]

BIO = (
    "{name} is a {job} from {home}.",
    "{name}, who comes from {home}, works as a {job}.",
    "Born in {home}, {name} has long been a {job}.",
    "{name} earns a living as a {job} in {home}.",
    "The {job} in question is {name}, who lives in {home}.",
    "A {job} by trade, {name} has a house in {home}.",
    "{home} is the home of {name}, a {job}.",
    "Neighbours in {home} know {name} as a {job}.",
    "By profession {name} is a {job}, by birth a child of {home}.",
    "{name} left {home} only to learn the work of a {job}.",
)
WRONG_PLACE = (
    "Early reports had named {wrong_place}, which was a mistake.",
    "It did not happen in {wrong_place}, as was first said.",
    "A radio station wrongly spoke of {wrong_place}.",
    "Contrary to first reports, {wrong_place} was not the scene.",
    "Some had heard that it was in {wrong_place}, but that was false.",
    "The mayor of {wrong_place} made clear that his town was not concerned.",
    "{wrong_place} was ruled out as the location.",
    "Messages that spoke of {wrong_place} were withdrawn.",
)
WRONG_FIGURE = (
    "At first the figure was given as {first} {unit}.",
    "Officials had begun by speaking of {first} {unit}.",
    "The earliest estimate was {first} {unit}.",
    "On the first evening {first} {unit} were mentioned.",
    "A hasty count had come to {first} {unit}.",
    "Word of {first} {unit} went round in the first hours.",
    "Nobody doubted then that it was {first} {unit}.",
    "The opening tally stood at {first} {unit}.",
)
RIGHT_FIGURE = (
    "The final count was {n}.",
    "That number was later corrected to {n}.",
    "In the end it turned out to be {n}.",
    "A second look showed that {n} was right.",
    "The official record now says {n}.",
    "It has since been confirmed that the true number is {n}.",
    "Since then {n} has been accepted by all sides.",
    "After a recount everybody settled on {n}.",
)
CAUSE = (
    "Investigators put it down to {cause}.",
    "The reason was {cause}, a report found.",
    "It all goes back to {cause}.",
    "An expert named {cause} as the cause.",
    "What lay behind it was {cause}.",
    "The inquiry ended with one finding: {cause}.",
    "Blame fell on {cause} once the facts were in.",
    "Everything began with {cause}, it is now known.",
)
DENIED_CAUSE = (
    "Rumours about {denied} were dismissed.",
    "There was no truth in talk of {denied}.",
    "It had nothing to do with {denied}.",
    "A spokesman ruled out {denied}.",
    "{denied_capital} had been suspected but played no part.",
    "Those who suspected {denied} were wrong.",
    "Claims of {denied} did not hold up.",
    "No sign of {denied} was ever found.",
)
BYSTANDER = (
    "{who} saw it from across the street.",
    "{who} spoke to reporters afterwards.",
    "{who} had left an hour earlier.",
    "{who} was among those who watched.",
    "{who} learned of it from the radio.",
    "{who} declined to comment.",
    "{who} happened to pass by at that time.",
    "{who} heard the news over dinner.",
)
FILLER = (
    "The weather was calm.",
    "Roads nearby stayed open.",
    "A large crowd gathered.",
    "Local shops closed early.",
    "A public meeting is planned.",
    "The council will meet next week.",
    "Traffic was slow all day.",
    "Schools remained open.",
)


@dataclass(frozen=True)
class Event:
    """One kind of event: what the document says and the summaries that answer it.

    Attributes:
        leads: what, where and when; the lead's index picks the summary's form.
        fates: pairs (sentence about ``{who}``, its short form in the summary); two of each form.
        venues, units, causes: what fills the slots.
        summaries: forms of the one-sentence summary.
    """

    leads: tuple[str, ...]
    fates: tuple[tuple[str, ...], ...]
    venues: tuple[str, ...]
    units: tuple[str, ...]
    causes: tuple[str, ...]
    summaries: tuple[str, ...]


FIRE = Event(
    leads=(
        "A fire broke out at the {venue} in {place} on {day}.",
        "On {day} flames spread through the {venue} of {place}.",
        "The {venue} in {place} burned for hours on {day}.",
        "Smoke rose over {place} on {day} as its {venue} caught fire.",
        "Firefighters were called to a blaze at the {venue} in {place} on {day}.",
        "{place} woke on {day} to find its {venue} burning.",
        "Nothing could save the {venue} of {place} from burning down on {day}.",
        "It was on {day} that sparks set the {venue} of {place} alight.",
    ),
    fates=(
        ("{who} was carried out with burns.", "Doctors treated burns on {who}.", "badly burned"),
        ("{who} escaped through a window.", "A window saved {who}.", "able to escape"),
        ("{who} breathed in too much smoke.", "Smoke made {who} ill.", "ill from smoke"),
        ("{who} lost everything.", "Nothing was left to {who}.", "without a home"),
    ),
    venues=("grain mill", "old theatre", "paper factory", "town hall", "timber yard", "boat house"),
    units=("rooms", "carts", "barrels", "books"),
    causes=("a faulty heater", "a spilled lamp", "dry straw", "a broken cable", "a forgotten candle"),
    summaries=(
        "A fire at the {venue} in {place} {destroyed} {n} {unit} and left {hero}, {fate} after {cause}.",
        "{hero}, was {fate} when {cause} led to a fire that {destroyed} {n} {unit} at "
        "the {venue} in {place}.",
        "{cause_capital} caused a fire at the {venue} in {place} in which {n} {unit} "
        "were {destroyed} and {hero}, was {fate}.",
    ),
)
FLOOD = Event(
    leads=(
        "Water poured into the {venue} in {place} on {day}.",
        "The {venue} of {place} was flooded on {day}.",
        "On {day} a flood reached the {venue} in {place}.",
        "The river rose on {day} and swept through the {venue} in {place}.",
        "High water hit {place} on {day} and filled its {venue}.",
        "By noon on {day} the {venue} in {place} stood under water.",
        "Boats had to be used on {day} at the {venue} of {place}.",
        "The {venue} in {place} vanished under brown water on {day}.",
    ),
    fates=(
        ("{who} was pulled from the mud.", "Helpers dragged {who} out of the mud.", "rescued"),
        ("{who} spent the night on a roof.", "A roof was the only refuge for {who}.", "stranded"),
        ("{who} broke a leg.", "A leg of {who} was broken.", "injured"),
        ("{who} has not been seen since.", "The search for {who} goes on.", "missing"),
    ),
    venues=("cattle market", "rail station", "lower school", "brick works", "garden colony", "chapel"),
    units=("sheep", "houses", "cellars", "fields"),
    causes=("a cracked dam", "three days of rain", "melting snow", "a blocked drain", "a jammed gate"),
    summaries=(
        "A flood caused by {cause} {destroyed} {n} {unit} near the {venue} in {place}, "
        "where {hero}, was {fate}.",
        "{hero}, was {fate} when {cause} flooded the {venue} in {place} and {destroyed} {n} {unit}.",
        "{n} {unit} were {destroyed} and {hero}, was {fate} after {cause} flooded the {venue} in {place}.",
    ),
)
THEFT = Event(
    leads=(
        "Thieves entered the {venue} in {place} on {day}.",
        "The {venue} of {place} was robbed on {day}.",
        "On {day} a theft was discovered at the {venue} in {place}.",
        "Staff at the {venue} in {place} found the safe empty on {day}.",
        "Police were called to the {venue} of {place} after a break-in on {day}.",
        "Somebody forced the doors of the {venue} in {place} on {day}.",
        "A window at the {venue} of {place} was found smashed on {day}.",
        "When the {venue} in {place} opened on {day}, the shelves were bare.",
    ),
    fates=(
        ("{who} was led away in handcuffs.", "Officers took {who} away.", "arrested"),
        ("{who} admitted everything.", "A full confession came from {who}.", "guilty by own account"),
        ("{who} ran into the woods.", "The woods hid {who}.", "on the run"),
        ("{who} will face a judge.", "A judge will hear {who}.", "charged"),
    ),
    venues=("city museum", "coin shop", "harbour bank", "old abbey", "watch factory", "post office"),
    units=("coins", "paintings", "watches", "letters"),
    causes=("an unlocked gate", "a lost key", "a sleeping guard", "gambling debts", "a silent alarm"),
    summaries=(
        "{hero}, is {fate} over the theft of {n} {unit} from the {venue} in {place}, "
        "made possible by {cause}.",
        "The theft of {n} {unit} from the {venue} in {place}, made possible by {cause}, "
        "has left {hero}, {fate}.",
        "{cause_capital} let thieves {take} {n} {unit} from the {venue} in {place}, and {hero}, is {fate}.",
    ),
)
CRASH = Event(
    leads=(
        "A bus hit the {venue} in {place} on {day}.",
        "On {day} a bus left the road by the {venue} of {place}.",
        "There was a crash beside the {venue} in {place} on {day}.",
        "The morning bus never got past the {venue} in {place} on {day}.",
        "A loud bang was heard at the {venue} of {place} on {day}, when a bus ran into it.",
        "The front wall of the {venue} in {place} was struck by a bus on {day}.",
        "Glass covered the street by the {venue} in {place} after a bus accident on {day}.",
        "No bus has run past the {venue} of {place} since the collision on {day}.",
    ),
    fates=(
        ("{who} was taken to hospital.", "An ambulance took {who} away.", "in hospital"),
        ("{who} walked away without a scratch.", "Not a scratch was found on {who}.", "unhurt"),
        ("{who} died at the scene.", "No help came in time for {who}.", "dead"),
        ("{who} lost a finger.", "A finger of {who} could not be saved.", "maimed"),
    ),
    venues=("stone bridge", "fish market", "toll house", "water tower", "dairy", "court house"),
    units=("passengers", "pupils", "tourists", "workers"),
    causes=("worn brakes", "thick fog", "a burst tyre", "a runaway horse", "black ice"),
    summaries=(
        "{hero}, is {fate} after a bus with {n} {unit} on board hit the {venue} in "
        "{place} {because} {cause}.",
        "A bus carrying {n} {unit} crashed into the {venue} in {place} {because} "
        "{cause}, leaving {hero}, {fate}.",
        "{cause_capital} sent a bus with {n} {unit} into the {venue} in {place}, and {hero}, is {fate}.",
    ),
)
VOTE = Event(
    leads=(
        "Voters in {place} decided on the future of the {venue} on {day}.",
        "On {day} the people of {place} voted about the {venue}.",
        "The {venue} was the subject of a vote in {place} on {day}.",
        "Polls closed late on {day} in {place}, where the {venue} was at stake.",
        "A long campaign over the {venue} ended in {place} on {day}.",
        "Ballots about the {venue} were counted in {place} on {day}.",
        "Queues formed in {place} on {day} as people had their say on the {venue}.",
        "The question of the {venue} went to the people of {place} on {day}.",
    ),
    fates=(
        ("{who} came out on top.", "Most of the ballots went to {who}.", "elected"),
        ("{who} gave up that evening.", "That evening saw {who} step down.", "out of office"),
        ("{who} asked for a recount.", "A recount was demanded by {who}.", "contesting the result"),
        ("{who} was fined for cheating.", "For cheating {who} had to pay.", "fined"),
    ),
    venues=("ring road", "ferry dock", "steel plant", "city park", "airfield", "tram line"),
    units=("votes", "ballots", "signatures", "proxies"),
    causes=("rising rents", "a tax scandal", "a secret letter", "broken promises", "a fierce debate"),
    summaries=(
        "{hero}, is {fate} after a vote on the {venue} in {place} was settled by {n} "
        "{unit} {because} {cause}.",
        "A vote on the {venue} in {place}, settled by {n} {unit} {because} {cause}, has left {hero}, {fate}.",
        "{cause_capital} tipped a vote on the {venue} in {place} by {n} {unit}, and {hero}, is {fate}.",
    ),
)
MATCH = Event(
    leads=(
        "The cup final was played at the {venue} in {place} on {day}.",
        "On {day} the {venue} of {place} hosted the cup final.",
        "{place} saw the cup final on {day}, held at its {venue}.",
        "Flags hung over the {venue} in {place} for the final on {day}.",
        "The season ended with a final at the {venue} of {place} on {day}.",
        "All tickets were sold for the final at the {venue} in {place} on {day}.",
        "Drums were beaten at the {venue} of {place} on {day} as the cup was decided.",
        "There was one match left on {day}, and the {venue} in {place} had it.",
    ),
    fates=(
        ("{who} lifted the cup.", "The cup went to {who}.", "champion"),
        ("{who} was sent off.", "A red card ended the day for {who}.", "banned"),
        ("{who} limped from the field.", "Pain forced {who} to stop.", "lame"),
        ("{who} will never play again.", "It was the last match for {who}.", "retired"),
    ),
    venues=("north stadium", "ice hall", "river arena", "race track", "school field", "sports dome"),
    units=("fans", "children", "members", "soldiers"),
    causes=("a late goal", "a missed penalty", "a wrong whistle", "heavy rain", "a goalkeeper's slip"),
    summaries=(
        "{hero}, is {fate} after {cause} decided the cup final {watched} by {n} {unit} "
        "at the {venue} in {place}.",
        "{cause_capital} decided the cup final at the {venue} in {place}, {watched} by "
        "{n} {unit}, and {hero}, is {fate}.",
        "The cup final at the {venue} in {place}, {watched} by {n} {unit} and decided by "
        "{cause}, has left {hero}, {fate}.",
    ),
)
FIND = Event(
    leads=(
        "Old objects came to light under the {venue} in {place} on {day}.",
        "On {day} diggers struck a hidden room below the {venue} of {place}.",
        "A treasure was found on {day} beneath the {venue} in {place}.",
        "Work at the {venue} in {place} stopped on {day} when a vault was opened.",
        "Students made a discovery under the {venue} of {place} on {day}.",
        "The ground below the {venue} in {place} gave up a secret on {day}.",
        "Shovels met something hard under the {venue} of {place} on {day}.",
        "What lay below the {venue} in {place} was seen for the first time on {day}.",
    ),
    fates=(
        ("{who} gets the reward.", "The reward goes to {who}.", "rich"),
        ("{who} sold some of it in secret.", "Secret sales were traced to {who}.", "under suspicion"),
        ("{who} will run the new museum.", "The new museum will be led by {who}.", "director of a museum"),
        ("{who} was buried by falling earth.", "Falling earth covered {who}.", "lucky to be alive"),
    ),
    venues=("salt mine", "bishop's palace", "wine cellar", "parking lot", "orchard", "fort"),
    units=("bones", "swords", "jars", "rings"),
    causes=("a badger's hole", "a school project", "a new pipeline", "an old map", "a long drought"),
    summaries=(
        "{hero}, is {fate} after {cause} {led} to the discovery of {n} {unit} under the {venue} in {place}.",
        "The discovery of {n} {unit} under the {venue} in {place}, to which {cause} "
        "{led}, has left {hero}, {fate}.",
        "{n} {unit} were found under the {venue} in {place} thanks to {cause}, and {hero}, is {fate}.",
    ),
)
STRIKE = Event(
    leads=(
        "Workers walked out of the {venue} in {place} on {day}.",
        "On {day} a strike began at the {venue} of {place}.",
        "The {venue} in {place} stood still on {day}.",
        "Pickets appeared before the {venue} of {place} on {day}.",
        "No work was done on {day} at the {venue} in {place}.",
        "The gates of the {venue} in {place} were blocked by staff on {day}.",
        "Tools were laid down on {day} at the {venue} of {place}.",
        "Banners went up around the {venue} in {place} on {day}, and nobody worked.",
    ),
    fates=(
        ("{who} was shown the door.", "There is no job left for {who}.", "dismissed"),
        ("{who} speaks for the staff.", "The staff chose {who} to speak.", "leader of the protest"),
        ("{who} crossed the line and worked.", "Work went on for {who} alone.", "shunned"),
        ("{who} signed the new contract.", "The new contract bears the name of {who}.", "back at work"),
    ),
    venues=("shipyard", "glass works", "coal pit", "print shop", "bread factory", "tea warehouse"),
    units=("workers", "jobs", "shifts", "orders"),
    causes=("unpaid overtime", "a cut in wages", "an unsafe crane", "a stolen pension", "cold halls"),
    summaries=(
        "A strike over {cause} at the {venue} in {place} has {hit} {n} {unit} and left {hero}, {fate}.",
        "{hero}, is {fate} after {cause} led to a strike that {hit} {n} {unit} at the {venue} in {place}.",
        "{cause_capital} brought the {venue} in {place} to a halt, {n} {unit} were "
        "{hit}, and {hero}, is {fate}.",
    ),
)

EVENTS = (FIRE, FLOOD, THEFT, CRASH, VOTE, MATCH, FIND, STRIKE)

SYNONYMS = {
    "destroyed": ("destroyed", "ruined"),
    "take": ("take", "steal"),
    "because": ("because of", "owing to"),
    "watched": ("watched", "seen"),
    "led": ("led", "pointed"),
    "hit": ("hit", "affected"),
}
"""Free choices of the summary's wording: what keeps sampling from being a look-up."""

UNSEEN_FATES = {
    "badly burned": "The skin of {who} bears deep burns.",
    "able to escape": "By way of a window {who} got out.",
    "ill from smoke": "The lungs of {who} filled with smoke.",
    "without a home": "All that {who} owned is gone.",
    "rescued": "Many hands freed {who} from the mud.",
    "stranded": "Until dawn {who} sat on a roof.",
    "injured": "With a broken leg {who} waited for help.",
    "missing": "Where {who} is now, nobody can tell.",
    "arrested": "In handcuffs {who} left the building.",
    "guilty by own account": "Before long {who} had confessed it all.",
    "on the run": "Into the woods {who} fled.",
    "charged": "Before a judge {who} must now appear.",
    "in hospital": "An ambulance was needed for {who}.",
    "unhurt": "Without a scratch {who} got off.",
    "dead": "At the scene {who} passed away.",
    "maimed": "One finger less is what {who} has now.",
    "elected": "No rival could beat {who} at the polls.",
    "out of office": "Before midnight {who} had stepped down.",
    "contesting the result": "For {who} the ballots must be counted again.",
    "fined": "The price of cheating was paid by {who}.",
    "champion": "With the cup in hand {who} went home.",
    "banned": "After a red card {who} had to go.",
    "lame": "With a limp {who} left the field.",
    "retired": "No further match will see {who}.",
    "rich": "All of the reward is due to {who}.",
    "under suspicion": "Some pieces were sold in secret by {who}.",
    "director of a museum": "A new museum awaits {who} as its head.",
    "lucky to be alive": "Under falling earth {who} lay for an hour.",
    "dismissed": "The firm no longer wants {who}.",
    "leader of the protest": "When the staff speaks, it is {who} who talks.",
    "shunned": "Alone {who} crossed the line.",
    "back at work": "A new contract now binds {who}.",
}
"""By the short form in the summary: the one sentence of each fate that training never uses."""
