from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from vlpipe import pipeline
from vlpipe.evaluate.recipes.recipe import load
from vlpipe.evaluate.results import LEDGER, latest, read
from vlpipe.extract.encoders.bundled import FOLDER
from vlpipe.manifests.build import build
from vlpipe.manifests.manifest import Manifest

FLOORS = {"digit": 92, "thickthinning": 94, "swelling": 88, "fracture": 86, "scaling": 98, "colour": 99}
ROW = re.compile(r"^\| (\w+) \| ([\d.]+) \|", re.MULTILINE)
IMAGES = re.compile(r"^Images measured: ([\d,]+)$", re.MULTILINE)


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """The 800 test digits under transforms and captions that neither training nor the card has seen."""
    settings = {"digits": 800, "images_per_digit": 2, "captions": 1, "seed": 90210, "prompts": True}
    return build("mad", None, tmp_path_factory.mktemp("mad"), settings)


def accuracies(fresh: Manifest, folder: Path, *settings: str) -> dict[str, float]:
    """Percent by attribute, by the card's own commands."""
    manifest, encoder = ["--manifest", str(fresh.folder)], "bundled:mad-clip"
    cache, runs = ["--cache", str(folder / "cache")], ["--runs", str(folder / "runs")]
    for command in (
        ["extract", *manifest, *cache, "--encoder", encoder, "--output", "pooled", *settings],
        ["train-head", "identity", *manifest, *cache, *runs, "--encoder", f"{encoder}#pooled"],
        ["eval", *runs, "--all", "--task", "attributes"],
    ):
        assert pipeline.run(command) == 0
    found = {entry.metric: 100 * entry.value for entry in latest(read(folder / "runs" / LEDGER))}
    return {name: found[f"accuracy_original:{name}"] for name in FLOORS}


@pytest.fixture(scope="module")
def measured(fresh: Manifest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    return accuracies(fresh, tmp_path_factory.mktemp("measured"))


@pytest.fixture(scope="module")
def card() -> str:
    return (FOLDER / "mad-clip.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", FLOORS)
def test_the_card_tells_the_truth(name: str, measured: dict[str, float], card: str) -> None:
    told = {row[1]: float(row[2]) for row in ROW.finditer(card)}
    assert told.keys() == FLOORS.keys()
    found = IMAGES.search(card)
    assert found is not None
    here, there = 800 * 2, int(found[1].replace(",", ""))
    share = min(told[name] / 100, 1 - 1 / here)  # a spread of nothing would forbid a single miss
    # Both draws are of the same digits: what differs is sampling; three standard errors of the difference.
    tolerance = 300 * math.sqrt(share * (1 - share) * (1 / here + 1 / there))
    assert measured[name] == pytest.approx(told[name], abs=tolerance)


@pytest.mark.parametrize("name", FLOORS)
def test_it_is_as_good_as_it_must_be(name: str, measured: dict[str, float], card: str) -> None:
    assert measured[name] >= FLOORS[name]
    assert {row[1]: float(row[2]) for row in ROW.finditer(card)}[name] >= FLOORS[name]


def test_random_weights_are_no_better_than_chance(fresh: Manifest, tmp_path: Path) -> None:
    chance = accuracies(fresh, tmp_path, "--set", "init_seed=3")
    assert chance["digit"] < 20
    assert chance["swelling"] < 70


def test_the_card_names_the_recipe(card: str) -> None:
    assert load("mad-clip").settings["images_per_digit"] == 30  # 120,000 images, as the card says
    assert "    vlpipe recipe run mad-clip\n" in card
