"""Names that captions use for COCO's 80 categories, beside the category's own.

Our list, since ProtoLIP (appendix G) publishes two examples of its own only. A name stands here where it nearly
always means the category; words of several meanings (glass, player, baby, ball, plant) are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

ALIASES: Mapping[str, Sequence[str]] = {
    "person": (
        "man", "woman", "boy", "girl", "child", "kid", "lady", "guy", "gentleman", "toddler", "skier", "surfer",
        "snowboarder", "skateboarder", "pedestrian", "cyclist", "bicyclist", "motorcyclist", "policeman",
        "fireman",
    ),
    "bicycle": ("bike",),
    "car": ("automobile", "sedan", "taxi", "suv"),
    "motorcycle": ("motorbike", "moped", "motor bike", "motor cycle"),
    "airplane": ("plane", "aeroplane", "jet", "airliner", "aircraft"),
    "bus": ("double decker",),
    "train": ("locomotive",),
    "truck": ("pickup", "lorry"),
    "boat": ("ship", "sailboat", "canoe", "kayak", "rowboat", "ferry"),
    "traffic light": ("stoplight", "stop light", "traffic signal"),
    "fire hydrant": ("hydrant",),
    "bird": ("seagull", "pigeon", "parrot", "duck", "goose", "owl", "swan", "pelican"),
    "cat": ("kitten", "kitty"),
    "dog": ("puppy", "pup"),
    "horse": ("pony",),
    "sheep": ("lamb",),
    "cow": ("cattle", "calf"),
    "backpack": ("back pack", "rucksack"),
    "umbrella": ("parasol",),
    "handbag": ("purse", "hand bag"),
    "tie": ("necktie", "neck tie", "bow tie", "bowtie"),
    "suitcase": ("luggage",),
    "frisbee": ("frisbie",),
    "skis": ("ski",),
    "snowboard": ("snow board",),
    "sports ball": ("baseball", "tennis ball", "soccer ball", "football", "basketball", "volleyball"),
    "baseball glove": ("baseball mitt", "catcher's mitt"),
    "skateboard": ("skate board",),
    "surfboard": ("surf board",),
    "tennis racket": ("tennis racquet", "racket", "racquet"),
    "wine glass": ("wineglass",),
    "cup": ("mug",),
    "donut": ("doughnut",),
    "couch": ("sofa", "loveseat"),
    "potted plant": ("houseplant", "house plant"),
    "dining table": ("dinner table", "kitchen table", "table"),
    "tv": ("television", "tv set", "television set"),
    "laptop": ("laptop computer", "notebook computer"),
    "mouse": ("computer mouse",),
    "remote": ("remote control", "wii remote", "wiimote"),
    "cell phone": ("cellphone", "mobile phone", "smartphone", "smart phone", "cellular phone"),
    "microwave": ("microwave oven",),
    "oven": ("stove",),
    "refrigerator": ("fridge",),
    "teddy bear": ("stuffed bear", "teddy"),
    "hair drier": ("hair dryer", "blow dryer", "hairdryer"),
}  # fmt: skip


def names_of(categories: Sequence[str]) -> dict[str, list[str]]:
    """Every category's own name and its other ones."""
    return {category: [category, *ALIASES.get(category, ())] for category in categories}
