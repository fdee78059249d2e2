"""What a language model is asked, and how its answers are read. The words are vlpipe's own."""

from __future__ import annotations

from collections.abc import Mapping

from vlpipe.derive.spans import Kind

CODE = 1  # version: raised when a prompt or the reading of an answer changes
PARAPHRASE = (
    "Say the same as the caption below in other words. Keep every person, animal, thing and action; add nothing "
    "that it does not say, and name nobody. Answer with one sentence and nothing else.\n"
    "Caption: {text}\nIn other words:"
)
TO_GERMAN = (
    "Translate the caption below from English into German. Answer with the translation and nothing else.\n"
    "English: {text}\nGerman:"
)
TO_ENGLISH = (
    "Translate the caption below from German into English. Answer with the translation and nothing else.\n"
    "German: {text}\nEnglish:"
)
SPANS = (
    "Copy from the caption below every {what}. Copy letter by letter, change nothing, one to a line. "
    "Answer NONE if there is none.\nCaption: {text}\nCopied:\n"
)
WHAT: Mapping[Kind, str] = {
    "attributes": "word or phrase for a quality: a colour, size, age, material, shape or another adjective",
    "relations": "word or phrase for a place or an interaction between two things: a preposition, or a verb "
    "with an object",
    "counts": "numeral or word for how many there are",
}
NONE = "none"


def sentence(answer: str) -> str:
    """The first line that says something, without the quotes or the label around it; "" where there is none."""
    lines = (line.strip().strip("\"'`*“”").strip() for line in answer.splitlines())
    first = next((line for line in lines if line), "")
    label, colon, rest = first.partition(":")
    labels = {"in other words", "paraphrase", "german", "english", "translation", "caption"}
    return rest.strip() if colon and label.lower() in labels and rest.strip() else first


def listed(answer: str) -> list[str]:
    """One item a line, without bullets, numbers or quotes; [] for NONE."""
    items = (line.strip().lstrip("-*•0123456789.) ").strip("\"'`“”,").strip() for line in answer.splitlines())
    return [item for item in items if item and item.lower() != NONE]
