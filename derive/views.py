"""Views of captions: the same picture with less said, or said otherwise (TPC, appendices B.2 and C.5)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from vlpipe.derive.captions import Caption, captions
from vlpipe.derive.deletion import delete, pick
from vlpipe.derive.filters import Filter, Nearness
from vlpipe.derive.language import LanguageModel
from vlpipe.derive.prompts import PARAPHRASE, SPANS, TO_ENGLISH, TO_GERMAN, WHAT, listed, sentence
from vlpipe.derive.settings import WRITTEN, View, ViewsConfig, deletion_name
from vlpipe.derive.spans import Kind, Span, core_spans, find_spans, locate
from vlpipe.foundation.errors import UsageError
from vlpipe.foundation.progress import Advance, silent
from vlpipe.manifests.contracts import Row
from vlpipe.manifests.manifest import Manifest

AT_ONCE = 256  # texts that are worked on together
MAX_TOKENS = 80  # of a model's answer
SAMPLES = (1.0, 0.75, 0.5, 0.25, 0.0)  # shares that core-only samples take out, one after the other
Proposal = tuple[str, dict[str, Any]]  # a text, and how it was made


@dataclass
class Views:
    """Makes the rows; `told` counts what was made, turned down, replaced by a core-only view, and left out.

    Raises `UsageError` where the language model or the text encoder that a view needs is not given.
    """

    config: ViewsConfig
    model: LanguageModel | None = None
    nearness: Nearness | None = None
    told: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        needs = self.config.needs_model
        if needs and self.model is None:
            raise UsageError(
                f"{' and '.join(needs)}: needs --model FOLDER (core and deletion by the tagger do not)"
            )
        if set(WRITTEN) & set(self.config.views) and self.nearness is None:
            raise UsageError(
                f"{needs[0]}: needs --encoder SPEC, a text encoder that tells whether it says the same"
            )
        limits = self.config
        self.filter = Filter(limits.min_words, limits.max_words, limits.min_cosine, self.nearness)

    def rows(self, manifest: Manifest, advance: Advance = silent) -> Iterator[Row]:
        """All views of all captions: caption by caption, the views in the order asked."""
        for part in captions(manifest, AT_ONCE):
            self.told["captions"] += len(part)
            made = [self._made(name, part) for name in self.config.views]
            for place in range(len(part)):
                for view in made:
                    yield from view[place]
            advance(len(part))

    def _made(self, name: View, part: Sequence[Caption]) -> list[list[Row]]:
        """The rows of one view, a list a caption."""
        if name == "deletion":
            return self._deletions(part)
        if name == "core":
            found = self._first_passing(name, part, self._cores, len(SAMPLES))
        else:
            found = self._written(name, part)
        rows = [
            [caption.derived(name, f"view:{name}", *proposal)] if proposal else []
            for caption, proposal in zip(part, found, strict=True)
        ]
        self.told[f"{name}: made"] += sum(map(len, rows))
        self.told[f"{name}: left out"] += sum(not row for row in rows)
        return rows

    def _first_passing(
        self,
        name: str,
        part: Sequence[Caption],
        propose: Callable[[Sequence[Caption], int], list[Proposal]],
        tries: int,
    ) -> list[Proposal | None]:
        """Of each caption the first proposal that keeps to all rules."""
        found: list[Proposal | None] = [None] * len(part)
        for attempt in range(tries):
            places = [place for place, proposal in enumerate(found) if proposal is None]
            if not places:
                break
            proposals = propose([part[place] for place in places], attempt)
            faults = self.filter.faults([text for text, _ in proposals], [part[place].text for place in places])
            for place, proposal, fault in zip(places, proposals, faults, strict=True):
                if fault:
                    self.told[f"{name}: turned down by {fault}"] += 1
                else:
                    found[place] = proposal
        return found

    def _cores(self, part: Sequence[Caption], attempt: int) -> list[Proposal]:
        """Core-only samples: all that can be left out first, then less and less, at last nothing."""
        made: list[Proposal] = []
        for caption in part:
            spans = core_spans(caption.text)
            chosen = pick(spans, SAMPLES[attempt], self._seed(caption, f"core {attempt}")) if attempt else spans
            deleted = delete(caption.text, spans, chosen, articles=True)
            made.append((deleted.text, {"removed": list(deleted.removed), "cleaned": list(deleted.cleaned)}))
        return made

    def _written(self, name: View, part: Sequence[Caption]) -> list[Proposal | None]:
        """Views of the model; after so many that were turned down, another core-only sample."""
        propose = self._paraphrases if name == "paraphrase" else self._translations
        found = self._first_passing(name, part, propose, self.config.tries)
        failed = [place for place, proposal in enumerate(found) if proposal is None]
        others = self._first_passing(
            f"{name}, core instead",
            [part[place] for place in failed],
            lambda captions, attempt: self._cores(captions, attempt + 1),
            len(SAMPLES) - 1,
        )
        for place, other in zip(failed, others, strict=True):
            self.told[f"{name}: core instead"] += other is not None
            found[place] = other and (other[0], other[1] | {"instead": "core"})
        return found

    def _paraphrases(self, part: Sequence[Caption], attempt: int) -> list[Proposal]:
        return self._proposals(self._ask(PARAPHRASE, [caption.text for caption in part], attempt), attempt)

    def _translations(self, part: Sequence[Caption], attempt: int) -> list[Proposal]:
        german = self._ask(TO_GERMAN, [caption.text for caption in part], attempt)
        return self._proposals(self._ask(TO_ENGLISH, german, attempt), attempt)

    def _proposals(self, texts: Sequence[str], attempt: int) -> list[Proposal]:
        return [(text, {"try": str(attempt)}) for text in texts]

    def _ask(self, prompt: str, texts: Sequence[str], attempt: int) -> list[str]:
        if self.model is None:
            raise UsageError("a language model is needed: --model FOLDER")
        seed = self.config.seed * self.config.tries + attempt
        answers = self.model.complete([prompt.format(text=text) for text in texts], seed, MAX_TOKENS)
        return [sentence(answer) for answer in answers]

    def _deletions(self, part: Sequence[Caption]) -> list[list[Row]]:
        """A row of every kind and share, also where a caption has nothing of the kind (METHODS, TPC 8)."""
        made: list[list[Row]] = [[] for _ in part]
        for kind in self.config.delete:
            spans = self._spans(part, kind)
            for rows, caption, found in zip(made, part, spans, strict=True):
                rows += [self._deleted(caption, kind, found, share) for share in self.config.shares]
        return made

    def _deleted(self, caption: Caption, kind: Kind, spans: Sequence[Span], share: float) -> Row:
        chosen = pick(spans, share, self._seed(caption, kind))
        deleted = delete(caption.text, spans, chosen)
        name = deletion_name(kind, share)
        self.told[f"{name}: changed"] += bool(deleted.removed)
        told = {
            "removed": list(deleted.removed),
            "cleaned": list(deleted.cleaned),
            "removed_tokens": str(deleted.removed_tokens),
            "kind_tokens": str(deleted.kind_tokens),
        }
        return caption.derived(name, f"view:{name}", deleted.text, told)

    def _spans(self, part: Sequence[Caption], kind: Kind) -> list[list[Span]]:
        if self.config.spans == "tagger" or self.model is None:
            return [find_spans(caption.text, kind) for caption in part]
        prompts = [SPANS.format(what=WHAT[kind], text=caption.text) for caption in part]
        found = []
        for caption, answer in zip(part, self.model.complete(prompts, None, MAX_TOKENS), strict=True):
            spans, refused = locate(caption.text, listed(answer))
            self.told[f"{kind}: spans that are not in the caption"] += len(refused)
            found.append(spans)
        return found

    def _seed(self, caption: Caption, purpose: str) -> list[int]:
        """Of the caption's id, not its place: a grown manifest keeps its views."""
        name = blake2b(f"{caption.text_id}\0{purpose}".encode(), digest_size=8).digest()
        return [self.config.seed, int.from_bytes(name, "little")]
