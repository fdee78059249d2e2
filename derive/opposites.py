"""Words of which at most one is true of the same thing, and words that may both be."""

from __future__ import annotations

from collections.abc import Mapping

from vlpipe.derive.lexicon import word_lines, word_set

# One thing is one of a line's words only; singular forms.
OBJECTS = word_lines("""
dog cat horse cow sheep goat elephant bear zebra giraffe monkey rabbit duck pig camel tiger lion
car bus truck train boat airplane bicycle motorcycle tractor helicopter van
beach street forest kitchen bathroom bedroom office restaurant stadium desert church parking
pizza sandwich cake salad soup banana apple donut
guitar piano violin drum trumpet
baseball football basketball tennis hockey golf
bench bed couch table ladder
umbrella backpack suitcase skateboard surfboard snowboard scooter
man woman
boy girl
""")
# Whoever is one of these may be any other: never put for each other, but where a line of OBJECTS says so.
PERSONS = word_set(
    """man woman boy girl person people child kid baby toddler infant lady gentleman guy male female adult teenager
    teen youth human individual someone player rider surfer skier snowboarder skateboarder biker cyclist runner
    climber hiker swimmer dancer worker athlete performer singer musician skater soldier officer policeman fireman
    student teacher mother father parent son daughter brother sister friend couple family crowd group team crew
    audience spectator bystander pedestrian tourist fan racer driver motorcyclist bicyclist jogger diver fisherman
    bride groom cowboy clown fighter wrestler boxer batter pitcher catcher goalie referee coach opponent teammate
    figure shopper visitor walker passenger artist guitarist drummer photographer acrobat kayaker canoer one"""
)
_MALE = word_set("man boy guy male gentleman father son brother groom he him")
_FEMALE = word_set("woman girl lady female mother daughter sister bride she hers")
# By a person put in: words that say there is one of that sex already, or "he" for what was replaced.
_HE = word_set("he his him himself")
_SHE = word_set("she her hers herself")
GENDERS: Mapping[str, frozenset[str]] = {
    "man": _MALE | _SHE, "boy": _MALE | _SHE, "woman": _FEMALE | _HE, "girl": _FEMALE | _HE,
}  # fmt: skip
# Words that may name one thing, singular as `stem` makes it; those that OBJECTS opposes do not.
SAME_KIND = word_lines("""
animal pet dog puppy pup cat kitten hound terrier retriever poodle greyhound collie labrador beagle bulldog
photo photograph picture image snapshot
shirt t-shirt tshirt top sweater sweatshirt jacket coat jersey vest blouse outfit clothe clothing uniform
pant jean trouser short slack legging
hat cap helmet beanie hood
bike bicycle motorcycle motorbike dirtbike cycle vehicle
car truck van vehicle automobile suv jeep bus
boat canoe kayak raft ship sailboat vehicle
road street path sidewalk trail highway pavement track alley lane
water ocean sea lake pool pond river stream creek wave surf
beach shore sand seashore coast
grass field lawn yard meadow park garden pasture
hill mountain cliff slope mountainside rock boulder ledge
snow ice slope
forest wood tree bush branch
building house store shop structure wall home tower
ball toy football basketball baseball soccerball volleyball
couch sofa seat chair bench stool
stick branch twig log pole wood
stage podium platform floor
mouth face head hand hair arm body leg foot eye nose ear tongue paw back knee finger
fence railing gate barrier rail
jump trick stunt flip move
""")
# Nouns that say where or how rather than what: never replaced, and never put in.
VAGUE = word_set(
    """front top bottom middle side back edge end background foreground distance air midair center group line row
    pair couple set bunch lot number day night time way part piece kind type while something nothing anything
    everything thing area place spot view look shot game picture photo camera direction other one ground corner
    sky left right inside outside act action motion position turn walk run use style color colour order fun
    surface scene event"""
)
COLOUR_FAMILIES = word_lines("""
black dark navy
white cream silver light blond blonde gold golden
grey gray silver
red maroon burgundy pink orange magenta crimson
green teal turquoise khaki olive
blue navy teal turquoise cyan
yellow gold golden blond blonde tan
orange red brown
brown tan beige khaki golden brunette dark
purple violet lavender pink magenta
pink red purple magenta
tan beige brown khaki yellow golden blond blonde
""")
PLAIN_COLOURS = ("black", "white", "red", "green", "blue", "yellow", "brown", "orange", "purple", "pink", "gray")
# Each word with what it cannot be at once.
ADJECTIVES: Mapping[str, tuple[str, ...]] = {
    "big": ("small", "tiny"), "large": ("small", "tiny"), "huge": ("small", "tiny"), "giant": ("tiny", "small"),
    "small": ("large", "huge"), "tiny": ("large", "huge"), "young": ("old", "elderly"), "old": ("young",),
    "elderly": ("young",), "older": ("young",), "tall": ("short",), "long": ("short",), "wet": ("dry",),
    "dry": ("wet",), "empty": ("crowded",), "crowded": ("empty",), "wooden": ("metal", "plastic"),
    "metal": ("wooden",), "open": ("closed",), "closed": ("open",), "indoor": ("outdoor",),
    "outdoor": ("indoor",), "male": ("female",), "female": ("male",), "sunny": ("rainy", "snowy"),
    "snowy": ("sandy", "grassy"), "sandy": ("snowy", "grassy"), "grassy": ("snowy", "sandy"),
    "muddy": ("snowy", "clean"), "dirty": ("clean",), "clean": ("dirty",), "rocky": ("sandy", "grassy"),
    "narrow": ("wide",), "wide": ("narrow",), "steep": ("flat",), "flat": ("steep",), "shirtless": ("dressed",),
    "striped": ("spotted", "plain"), "spotted": ("striped",), "bald": ("long-haired",),
    "calm": ("rough",), "rough": ("calm",), "deep": ("shallow",), "shallow": ("deep",), "busy": ("empty",),
    # More than there are, never fewer: where there are three there are two.
    "two": ("three", "four", "five"), "three": ("four", "five", "six"), "four": ("five", "six"),
    "five": ("six", "seven"), "six": ("seven", "eight"),
}  # fmt: skip
# Adjectives that say nearly the same: where one is said of the image, none of its line is put in.
NEARLY = word_lines("""
big large huge giant tall long deep
small tiny little short shallow narrow
old older elderly
young younger
sandy muddy dirty rocky
grassy green
snowy white
""")
AGES = word_set("young old older elderly")
GROWN = word_set("man woman person people lady gentleman guy couple adult")  # who may be young or old
OWN_COLOURS = word_set("hair eye skin fur")  # differ within a group, and are seldom all told
ANIMALS = frozenset(OBJECTS[0])
# What may be on or about anybody without a word of it.
WORN = word_set(
    """collar tattoo expression smile sweater sweatshirt headband bow shirt jacket coat hood scarf glove ring
    necklace watch earring bracelet belt ponytail braid hat cap helmet patch bandage bandanna cast"""
)
RELATIONS: Mapping[str, tuple[str, ...]] = {
    "in front of": ("behind",), "behind": ("in front of",), "on top of": ("under", "beneath"),
    "under": ("on top of",), "underneath": ("on top of",), "beneath": ("on top of",), "above": ("below",),
    "below": ("above",), "over": ("under",), "up": ("down",), "down": ("up",), "into": ("out of",),
    "out of": ("into",), "inside": ("outside",), "outside": ("inside",), "near": ("far from",),
    "next to": ("far from",), "beside": ("far from",), "close to": ("far from",),
    "off": ("onto",), "onto": ("off",), "toward": ("away from",), "towards": ("away from",),
    "away from": ("towards",), "with": ("without",), "without": ("with",), "on": ("under", "beside"),
}  # fmt: skip
# What one goes up or down; with other nouns "up" and "down" belong to the verb ("picks up a toy").
SLOPING = word_set(
    """hill mountain slope stair staircase step ramp ladder cliff slide hillside mountainside dune escalator
    incline rope bank ledge rock wall tree"""
)
# Verbs behind which "into" is no place.
SAYING = word_set(
    """talk talks talking speak speaks speaking sing sings singing look looks looking stare stares staring gaze
    gazes gazing peer peers peering blow blows blowing dressed turn turns turning scream screams screaming"""
)
# Verbs as "base third-person participle": whoever does one of the first list does none of the second.
STILL = word_lines("""
sit sits sitting
stand stands standing
lie lies lying
sleep sleeps sleeping
kneel kneels kneeling
""")
MOVING = word_lines("""
walk walks walking
run runs running
jump jumps jumping
swim swims swimming
climb climbs climbing
dance dances dancing
crawl crawls crawling
""")
SAME_POSTURE = frozenset({"lay", "lays", "laying", "rest", "rests", "resting", "relax", "relaxes", "relaxing"})
SYMMETRIC = word_set(  # "A does it with B" is "B does it with A"
    """and or with near beside by next alongside against hug hugs hugging kiss kisses kissing meet meets meeting
    fight fights fighting wrestle wrestles wrestling talk talks talking dance dances dancing play plays playing
    face faces facing shake shakes shaking touch touches touching around between among like as while race races
    racing tackle tackles tackling embrace embraces embracing greet greets greeting join joins joining is are
    resemble resembles accompany accompanies of at"""
)
