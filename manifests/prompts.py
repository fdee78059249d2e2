"""Class prompts: one text a class and template, whose embeddings a zero-shot classifier averages class by class.

Names and templates are those that open_clip ships (Radford et al., "Learning Transferable Visual Models From
Natural Language Supervision", 2021, section 3.1.4; the names of ImageNet's classes as they were cleaned there).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Literal

from pydantic import Field

from vlpipe.foundation.errors import VlpipeError
from vlpipe.manifests.contracts import Row

PLACE = "{}"  # where the class name goes in a template
PLAIN = f"a photo of a {PLACE}."
Templates = Literal["imagenet", "simple", "generic", "none"] | Annotated[list[str], Field(min_length=1)]


def templates_of(choice: Templates) -> list[str]:
    """Templates with `{}` for the class name: 'imagenet' (80), 'simple' (open_clip's 7, in the order of its
    list), 'generic' ("a photo of a {}." and the 7), 'none', or a list of one's own.

    Raises `VlpipeError` for an own template without exactly one `{}`, or one that stands twice.
    """
    if isinstance(choice, list):
        return _checked(choice)
    if choice == "none":
        return []
    from open_clip.zero_shot_metadata import OPENAI_IMAGENET_TEMPLATES, SIMPLE_IMAGENET_TEMPLATES

    found = OPENAI_IMAGENET_TEMPLATES if choice == "imagenet" else SIMPLE_IMAGENET_TEMPLATES
    return [PLAIN] * (choice == "generic") + [template(PLACE) for template in found]


def imagenet_class_names() -> list[str]:
    """ImageNet's 1,000 class names for prompts, by class index; two of them stand twice (missile, sunglasses)."""
    from open_clip.zero_shot_metadata import IMAGENET_CLASSNAMES

    return list(IMAGENET_CLASSNAMES)


def prompt_rows(names: Mapping[str, str], templates: Sequence[str]) -> Iterator[Row]:
    """Rows of texts.parquet, class by class: `names` has the words that stand for each label.

    The label, those words and the template are attributes; ids are `prompt:LABEL#0`, `#1`, ...
    """
    for label, name in names.items():
        for number, template in enumerate(templates):
            yield {
                "text_id": f"prompt:{label}#{number}",
                "text": template.replace(PLACE, name),
                "role": "prompt",
                "attributes": {"label": label, "class": name, "template": template},
            }


def readable(label: str) -> str:
    """A folder's name as words: `golden_retriever` -> `golden retriever`."""
    return " ".join(label.replace("_", " ").split()) or label


def _checked(templates: list[str]) -> list[str]:
    for template in templates:
        if template.count(PLACE) != 1 or templates.count(template) > 1:
            what = (
                "stands twice" if template.count(PLACE) == 1 else f"has {template.count(PLACE)} places for a name"
            )
            raise VlpipeError(f"template '{template}' {what}; expected each once, with one {PLACE} for the class")
    return templates
