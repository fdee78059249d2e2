"""Any damaged byte of a store is noticed, or makes no difference."""

from __future__ import annotations

import json
import random
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from vlpipe.cache_store.errors import CorruptCacheError
from vlpipe.cache_store.metadata import sealed
from vlpipe.cache_store.reader import open_features


def test_damage_is_noticed_or_harmless(sample: Any, full: Path, damage: Any) -> None:
    tried, noticed = damage.damage_every_file(sample, full, rounds=2, seed=0)
    assert tried > 180  # 31 files, three outputs
    assert noticed > 90  # a chunk of one output does not matter to the others


@pytest.mark.soak
def test_much_damage_is_noticed_or_harmless(sample: Any, full: Path, damage: Any) -> None:
    tried, _ = damage.damage_every_file(sample, full, rounds=60, seed=1)
    assert tried > 3 * 500


@pytest.mark.parametrize("strategy", ["resident", "mapped", "blocks"])
@pytest.mark.parametrize("how", ["flip", "truncate", "remove"])
def test_a_damaged_chunk_names_file_and_rows_and_is_mended(
    sample: Any, full: Path, contents: Any, damage: Any, strategy: Any, how: str
) -> None:
    before = contents(full)
    chunk = full / "pooled" / "c.2.0"
    getattr(damage, how)(chunk, random.Random(3))
    with pytest.raises(CorruptCacheError, match=r"pooled/c\.2\.0' .*; rows 16 to 23 are lost: run the same `vlp"):
        damage.everything(full, "pooled", strategy)
    damage.everything(full, "tokens", strategy)
    chunk.unlink(missing_ok=True)
    writer = sample.open_writer(full)
    assert writer.missing() == [2]
    sample.fill(writer, status=sample.statuses(failed=[9], cut=[20]))
    assert contents(full) == before


def test_a_damaged_marker_names_its_rows_and_is_mended(sample: Any, full: Path, contents: Any) -> None:
    before = contents(full)
    marker = full / "status" / "blocks" / "4.json"
    marker.write_bytes(marker.read_bytes().replace(b'"ok":5', b'"ok":4'))
    with pytest.raises(CorruptCacheError, match=r"blocks/4.json' .*rows 32 to 36"):
        open_features(full, "pooled")
    writer = sample.open_writer(full)
    assert sample.fill(writer, status=sample.statuses(failed=[9], cut=[20])) == [4]
    assert contents(full) == before


@pytest.mark.parametrize("node", ["zarr.json", "pooled/zarr.json"])
@pytest.mark.parametrize("lost", [False, True])
def test_sealed_metadata_with_other_fields_is_refused_in_one_line(full: Path, node: str, lost: bool) -> None:
    """As another version of vlpipe would have written them."""
    path = full / node
    document = json.loads(path.read_bytes())
    content = {**document["attributes"]["vlpipe"]}
    content.pop("checksum")
    guarded = {"array": {k: v for k, v in document.items() if k != "attributes"}} if "/" in node else {}
    changed = dict(list(content.items())[1:]) if lost else content | {"other": 1}
    seal = sealed(changed | guarded)["checksum"]
    document["attributes"]["vlpipe"] = changed | {"checksum": seal}
    path.write_text(json.dumps(document))
    with pytest.raises(CorruptCacheError, match=re.escape(str(path))):
        open_features(full, "pooled")


def test_a_marker_with_other_fields_is_in_doubt_and_is_mended(sample: Any, full: Path, contents: Any) -> None:
    """As another version of vlpipe would have written it."""
    before = contents(full)
    marker = full / "status" / "blocks" / "4.json"
    content = json.loads(marker.read_bytes())
    content.pop("checksum")
    content["files"] = {name: {**files, "bytes": 1} for name, files in content["files"].items()}
    marker.write_text(json.dumps(sealed(content)))
    with pytest.raises(CorruptCacheError, match=r"blocks/4.json' .*rows 32 to 36"):
        open_features(full, "pooled")
    (full / "zarr.json").unlink()  # mended by what the markers say
    writer = sample.open_writer(full)
    assert sample.fill(writer, status=sample.statuses(failed=[9], cut=[20])) == [4]
    assert contents(full).keys() == before.keys()


def test_a_marker_of_another_store_does_not_count(sample: Any, full: Path) -> None:
    other = full.with_name("other.zarr")
    sample.fill(sample.open_writer(other, ids=[f"other {i}" for i in range(37)]))
    shutil.copy(other / "status" / "blocks" / "1.json", full / "status" / "blocks" / "1.json")
    with pytest.raises(CorruptCacheError, match="of other rows; rows 8 to 15"):
        open_features(full, "pooled")
    assert sample.open_writer(full).missing() == [1]


def test_the_status_array_alone_commits_nothing(sample: Any, full: Path) -> None:
    (full / "status" / "blocks" / "1.json").unlink()
    assert not open_features(full, "pooled").usable[8:16].any()


def test_a_folder_that_is_no_store(sample: Any, store: Path) -> None:
    store.mkdir(parents=True)
    (store / "something").touch()
    for use in (sample.open_writer, lambda path: open_features(path, "pooled")):
        with pytest.raises(CorruptCacheError, match="not vlpipe's"):
            use(store)
