"""JAM's recipes, run whole and small: made-up photos in the publishers' layouts, random features."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vlpipe import pipeline
from vlpipe.evaluate.recipes.checking import check_models
from vlpipe.evaluate.recipes.filling import toml
from vlpipe.evaluate.recipes.recipe import load
from vlpipe.evaluate.results import read
from vlpipe.extract import hub
from vlpipe.foundation.errors import VlpipeError

PHOTOS = 30
PAIRS = 55  # in a file: two files have more than twice the 50 components of CCA
SUBSETS = ("add_att", "add_obj", "replace_att", "replace_obj", "replace_rel", "swap_att", "swap_obj")
PAIR = {"name": "A & B", "text": "random_features", "text_output": "pooled"}
PAIR |= {"image": "random_features", "image_output": "pooled"}
KNOWN = PAIR | {"name": "OLMo2 (7B) & ResNet50"}
TASKS = [{"name": "add", "subsets": ["add_att"]}, {"name": "swap", "subsets": ["swap_att", "swap_obj"]}]
LAYERS = [{"name": "early", "output": "pooled"}, {"name": "late", "output": "pooled"}]
SMALL: dict[str, Any] = {
    "pair": [PAIR], "clip": [{"name": "ViT-B-32/OpenAI", "spec": "random_features"}], "seed": [5, 42], "epochs": 1,
    "text_options": [], "head_options": ["--set=hidden=[8]"], "alpha": [0.0, 0.5],
    "text": "random_features", "image": "random_features",
    "text_layer": LAYERS, "image_layer": LAYERS, "unrelated": 110,
}  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SugarCrepe's seven files, its photos, Winoground and a book."""
    root = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    for folder, names in (("photos", [f"{n}.jpg" for n in range(PHOTOS)]), ("images", _winoground_names())):
        (root / folder).mkdir()
        for name in names:
            Image.fromarray(rng.integers(0, 256, (8, 8, 3), np.uint8)).save(root / folder / name, format="png")
    for subset in SUBSETS:
        pairs = {
            str(n): {
                "filename": f"{n % PHOTOS}.jpg",
                "caption": f"{subset} {n}",
                "negative_caption": f"no {subset} {n}",
            }
            for n in range(PAIRS)
        }
        (root / f"{subset}.json").write_text(json.dumps(pairs), encoding="utf-8")
    groups = [
        {
            "id": n,
            "image_0": f"ex_{n}_img_0",
            "image_1": f"ex_{n}_img_1",
            "caption_0": f"a{n}",
            "caption_1": f"b{n}",
        }
        for n in range(4)
    ]
    (root / "examples.jsonl").write_text("\n".join(map(json.dumps, groups)), encoding="utf-8")
    (root / "book.txt").write_text(
        "\n".join(f"a line of a novel, number {n:03d}" for n in range(120)), encoding="utf-8"
    )
    return root


def _winoground_names() -> list[str]:
    return [f"ex_{group}_img_{place}.png" for group in range(4) for place in (0, 1)]


def arguments(name: str, data: Path, folder: Path, **changed: Any) -> list[str]:
    """`recipe run NAME` with every setting made small that the recipe has."""
    known = load(name).settings
    where = {"sugarcrepe": data, "photos": data / "photos", "winoground": data, "book": data / "book.txt"}
    given = SMALL | {key: str(path) for key, path in where.items()} | {"folder": str(folder)} | changed
    if name != "jam_layers":
        del given["alpha"]
    sets = [f"{key}={toml(value)}" for key, value in given.items() if key in known]
    return ["recipe", "run", name, *(word for assignment in sets for word in ("--set", assignment))]


def test_table_2_run_whole_and_again(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = arguments("jam_table2", data, tmp_path / "jam", pair=[KNOWN], task=TASKS, objective=["con", "spread"])
    assert pipeline.run([*words, "--json"]) == 0, capsys.readouterr().err
    told = capsys.readouterr()
    first = json.loads(told.out)
    assert told.err.count("$ vlpipe manifest build") == 2
    assert told.err.count("$ vlpipe train-head jam") == 4  # tasks and seeds; the objectives are a sweep
    row = {(*line["row"], line["column"]): line for line in first["numbers"] if line["table"].endswith("Recall@1")}
    line = row["OLMo2 (7B) & ResNet50", "spread", "Swap"]
    assert line["paper"] == 80.46
    assert row["OLMo2 (7B) & ResNet50", "con", "Replace"]["ours"] is None
    _check_against_the_ledger(tmp_path / "jam" / "runs", line)
    assert line["difference"] == pytest.approx(line["ours"]["mean"] - 80.46)
    assert pipeline.run(words) == 0
    told = capsys.readouterr()
    assert "encoded 0, all 30 rows were there" in told.err
    assert f"| OLMo2 (7B) & ResNet50 | spread | Swap | 80.46 | {line['ours']['mean']:.1f} ±" in told.out
    assert (tmp_path / "jam" / "jam_table2.md").read_text(encoding="utf-8") == told.out.removesuffix("\n")
    assert json.loads((tmp_path / "jam" / "jam_table2.json").read_text("utf-8"))["numbers"] == first["numbers"]
    assert len(list((tmp_path / "jam" / "runs").glob("jam-*"))) == 2 * 2 * 2


def _check_against_the_ledger(runs: Path, line: dict[str, Any]) -> None:
    """The mean over the runs that the ledger says were trained with this objective on the swap pairs."""
    entries = [
        e for e in read(runs / "results.jsonl") if e.metric == "binary_recall@1" and e.run.startswith("jam-")
    ]
    swap = [e for e in read(runs / "results.jsonl") if e.metric == "binary_recall@1:swap"]
    values = [
        100 * e.value
        for e in entries
        if e.provenance.config["objective"] == "spread" and any(o.run == e.run for o in swap)
    ]
    assert len(values) == 2
    assert sorted(line["values"]) == pytest.approx(sorted(values))
    assert line["ours"] == {
        "mean": pytest.approx(np.mean(values)),
        "std": pytest.approx(np.std(values, ddof=1)),
        "n": 2,
    }


@pytest.mark.parametrize("name", ["jam_table3", "jam_table15", "jam_statistics", "jam_layers"])
def test_every_number_is_one_that_the_task_gives(
    name: str, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed: dict[str, Any] = {"seed": [5]}
    if name == "jam_table3":
        kinds = {"Linear Proj. with Spread": ("projection", []), "JAM with Spread": ("jam", ["--set=hidden=[8]"])}
        changed["method"] = [
            {"name": name, "kind": kind, "options": words} for name, (kind, words) in kinds.items()
        ]
        changed["head_options"] = []
    if name == "jam_layers":
        changed["task"] = [{"name": "swap", "subsets": ["swap_att", "swap_obj"]}]
    assert pipeline.run([*arguments(name, data, tmp_path / "jam", **changed), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    recipe = load(name)
    assert {line["table"] for line in told["numbers"]} == {numbers.title for numbers in recipe.numbers}
    assert all(line["ours"] is not None for line in told["numbers"])
    assert len([path for path in told["files"] if path.endswith(".png")]) == len(recipe.figures)
    assert all(Path(path).stat().st_size for path in told["files"])


def test_nothing_is_done_where_something_is_not_there(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "jam"
    cases: list[tuple[dict[str, Any], int, str]] = [
        ({"photos": str(tmp_path / "none")}, 1, "the photos of COCO val2017: "),
        ({"pair": [PAIR | {"image": "hf:./none/model"}]}, 1, "'./none/model' does not exist"),
        ({"pair": [PAIR | {"image": "hff:x"}]}, 2, "did you mean 'hf'"),
        ({"epochs": -1}, 2, "epochs"),
        ({"objective": ["con", "spred"]}, 2, "objective"),
        ({"pair": [{"name": "no specs"}]}, 2, "no field of 'pair' is named 'image'"),
    ]
    for changed, code, expected in cases:
        assert pipeline.run(arguments("jam_table14", data, folder, **changed)) == code
        told = capsys.readouterr()
        assert expected in told.err
        assert len(told.err.splitlines()) == 1
        assert not folder.exists()


def test_weights_that_the_recipe_makes_need_not_be_there_yet() -> None:
    check_models(["bundled:mad-clip@out/run/weights.safetensors", "random_features"], "out")
    with pytest.raises(VlpipeError, match=r"'out/run/weights\.safetensors' does not exist"):
        check_models(["bundled:mad-clip@out/run/weights.safetensors"], "elsewhere")


def test_a_model_of_the_hub_must_be_there_or_in_its_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "hub_answers", lambda: False)
    with pytest.raises(VlpipeError, match=r"'hf:nobody/no-such-model' cannot be got \(LocalEntryNotFoundError: "):
        check_models(["hf:nobody/no-such-model"], "out")


def test_a_step_that_fails_ends_the_recipe_with_its_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        'title = "t"\npaper = "p"\nreproduces = "r"\n[settings]\nfolder = "x"\n'
        '[[steps]]\nrun = "list heads"\n[[steps]]\nrun = "cache show nowhere"\n[[steps]]\nrun = "list tasks"\n',
        encoding="utf-8",
    )
    assert pipeline.run(["recipe", "run", str(path)]) == 1
    told = capsys.readouterr()
    assert "$ vlpipe cache show nowhere" in told.err
    assert "$ vlpipe list tasks" not in told.err
    good = path.read_text("utf-8")
    for line, expected in (
        ("lisst heads", "step 1 (lisst heads): no command is named 'lisst'; did you mean 'list'"),
        ("extract --manifest", "step 1 (extract --manifest): Option '--manifest' requires an argument"),
        ("recipe run mine", "step 1 (recipe run): a step cannot be a recipe"),
        ("list --help", "No such option '--help'"),
    ):
        path.write_text(good.replace("list heads", line), encoding="utf-8")
        assert pipeline.run(["recipe", "run", str(path)]) == 2
        told = capsys.readouterr()
        assert expected in told.err
        assert "$" not in told.err
        assert len(told.err.splitlines()) == 1
