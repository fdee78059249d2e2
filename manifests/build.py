"""From a data set on the shelf, or from tables, to a manifest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from vlpipe.foundation.config import resolve
from vlpipe.foundation.errors import UsageError, VlpipeError
from vlpipe.foundation.progress import Advance, silent
from vlpipe.manifests.contracts import SHELF, Dataset, Row, WithCounts, WithRegions
from vlpipe.manifests.manifest import DESCRIPTION, Manifest, read_description
from vlpipe.manifests.schema import IMAGES, TEXTS
from vlpipe.manifests.tables import Source, TextRows, check_renames, image_rows
from vlpipe.manifests.writer import write_manifest


def build(
    name: str,
    root: Path | None,
    out: Path,
    *layers: Mapping[str, Any],
    overwrite: bool = False,
    advance: Advance = silent,
    note: Callable[[str], None] = lambda _: None,
) -> Manifest:
    """The manifest of a data set of the shelf, with later layers of settings over earlier ones.

    Where the published counts are known and differ, `note` is told: a miniature or a part is a manifest too.
    Raises what the shelf, the settings, the data set and the writer raise. A folder that was built with other
    settings is refused before any picture in it is written over.
    """
    kind, member = dataset_class(name)
    config = resolve(kind.Config, *layers, member)
    settings = config.model_dump(mode="json", exclude_none=True)
    if not overwrite:
        _check_standing(out, name, settings)
    dataset: Dataset = kind(config, root, out)
    made = write_manifest(
        out,
        name=name,
        source=dataset.source,
        licence=dataset.licence,
        image_root=dataset.image_root(),
        images=_counted(dataset.images(), advance),
        texts=_counted(dataset.texts(), advance),
        regions=_counted(dataset.regions(), advance) if isinstance(dataset, WithRegions) else (),
        settings=settings,
        overwrite=overwrite,
    )
    for line in differences(dataset, made) if isinstance(dataset, WithCounts) else ():
        note(f"{name}: {line}")
    return made


def dataset_class(name: str) -> tuple[type[Any], dict[str, str]]:
    """The class that a name stands for, and the setting in it: `torchvision:DTD` is `member` = DTD.

    An outside class is `package.module:Class`. Raises `UnknownNameError`, `UsageError`.
    """
    family, colon, member = name.partition(":")
    if not colon or "." in family:
        return SHELF.load(name), {}
    kind = SHELF.load(family)
    if "member" not in kind.Config.model_fields:
        raise UsageError(f"data set '{family}' is one set; name it without ':{member}'")
    return kind, {"member": member}


def differences(dataset: WithCounts, made: Manifest) -> Iterator[str]:
    """One line a split and table that has another number of rows than is published."""
    for table, splits in dataset.published().items():
        for split, count in splits.items():
            found = made.description.splits[table].get(split, 0)
            if found != count:
                yield f"{found:,} {table} in split {split}, published are {count:,}"


def _check_standing(out: Path, name: str, settings: Mapping[str, Any]) -> None:
    if not (out / DESCRIPTION).exists():
        return
    standing = read_description(out)
    if (standing.name, standing.settings) != (name, settings):
        raise VlpipeError(
            f"'{out}' holds '{standing.name}' built with {standing.settings}, asked is '{name}' with {settings}; "
            "give another folder, or --overwrite"
        )


def _counted(rows: Iterable[Row], advance: Advance) -> Iterator[Row]:
    for row in rows:
        yield row
        advance(1)


def build_from_tables(
    images: Path | None,
    texts: Path | None,
    out: Path,
    *,
    renames: Mapping[str, str],
    drop_blank: bool = False,
    image_root: Path | None = None,
    name: str | None = None,
    source: str = "",
    licence: str = "unknown",
    overwrite: bool = False,
) -> tuple[Manifest, list[str]]:
    """The manifest of a table of images and a table of texts (or None), or of one file that is both; and notes on
    what was not taken over. Raises what the tables and the writer raise.
    """
    image_source = Source(images, IMAGES, renames) if images else None
    text_source = Source(texts, TEXTS, renames) if texts else None
    sources = [each for each in (image_source, text_source) if each]
    check_renames(renames, sources)
    text_rows = TextRows(text_source, drop_blank) if text_source else None
    manifest = write_manifest(
        out,
        name=name or sources[0].path.stem,
        source=source or " and ".join(sorted({each.path.name for each in sources})),
        licence=licence,
        image_root=image_root or sources[0].path.parent,
        images=image_rows(image_source, repeats=images == texts) if image_source else (),
        texts=text_rows or (),
        overwrite=overwrite,
    )
    notes = [f"{text_rows.left_out} blank texts were left out"] if text_rows and text_rows.left_out else []
    for file in dict.fromkeys(each.path for each in sources):
        mine = [each for each in sources if each.path == file]
        unused = [name for name in mine[0].found if not any(name in each.columns.values() for each in mine)]
        notes += [f"columns of '{file}' that were not read: {', '.join(unused)}"] if unused else []
    return manifest, notes
