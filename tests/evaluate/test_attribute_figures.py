from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vlpipe.evaluate import attribute_figures
from vlpipe.evaluate.contracts import Rows
from vlpipe.evaluate.metrics.specificity import LATENT, TRUTH

NAMES = ["hue:red", "hue:blue", "size:large", "size:small"]


def activations() -> Rows:
    """Four images; each value's latent answers to its value alone, that of blue to nothing."""
    hue, size = np.array([0, 1, 1, 0]), np.array([0, 0, 1, 1])
    values: dict[str, Any] = {
        f"{LATENT}hue:red": 1.0 * (hue == 0),
        f"{LATENT}hue:blue": np.zeros(4),
        f"{LATENT}size:large": 1.0 * (size == 0),
        f"{LATENT}size:small": 1.0 * (size == 1),
        f"{TRUTH}hue": hue,
        f"{TRUTH}size": size,
    }
    return Rows(np.array(list("abcd"), dtype=object), np.arange(4), values)


def evaluated(**parts: Any) -> Any:
    return SimpleNamespace(task="task", split="test", run="run", apart="", **parts)


def test_each_latent_has_a_bar_a_value_and_each_attribute_a_file(tmp_path: Path) -> None:
    drawn = attribute_figures.draw_areas([evaluated(rows=activations())], tmp_path)
    assert [path.name for path in drawn] == ["task-test-run-hue.png", "task-test-run-size.png"]
    with Image.open(drawn[0]) as picture:
        assert min(picture.size) > 200
    areas = np.array([[1.0, 0.0, 0.5, 0.5], [0.5, 0.5, 0.5, np.nan], [0.5, 0.5, 1, 0], [0.5, 0.5, 0, 1]])
    figure = attribute_figures.latents(NAMES, areas, "hue")
    red, blue = figure.axes
    assert (red.get_title(), blue.get_title()) == ("latent of red", "latent of blue")
    heights = [bar.get_height() for bar in red.patches]  # type: ignore[attr-defined]
    assert heights == [1.0, 0.0, 0.5, 0.5]
    colours = [bar.get_facecolor()[:3] for bar in red.patches]
    assert colours[0] != colours[1] != colours[2] == colours[3]


def test_one_value_alone_is_one_panel() -> None:
    figure = attribute_figures.latents(["hue:red", "size:large"], np.array([[1.0, 0.5], [0.5, 1.0]]), "hue")
    assert len(figure.axes) == 1


@pytest.fixture
def entries() -> dict[str, Any]:
    """Of hue everything, of size no caption names it: no `_in`."""
    made = SimpleNamespace(options={"ablate": "hue"}, config={})
    shares = {"original:hue": 0.9, "original:size": 0.8, "edited_in:hue": 0.95, "edited_out:size": 0.5}
    shares |= {"ablated:hue": 0.3, "ablated:size": 0.79, "original": 0.85, "edited_in": 0.95, "edited_out": 0.5}
    shares |= {"ablated": 0.545}
    found: dict[str, Any] = {
        f"accuracy_{name}": SimpleNamespace(value=v, interval=[v - 0.01, v + 0.02], provenance=made)
        for name, v in shares.items()
    }
    chance = {
        f"chance_accuracy:{name}": SimpleNamespace(value=1 / n, interval=None, provenance=made)
        for name, n in (("hue", 3), ("size", 2))
    }
    return found | chance


def test_accuracies_stand_where_their_attribute_does(entries: dict[str, Any], tmp_path: Path) -> None:
    figure = attribute_figures.accuracies(evaluated(entries=entries))
    (axes,) = figure.axes
    bars = {round(bar.get_x() + bar.get_width() / 2, 3): bar.get_height() for bar in axes.patches}  # type: ignore[attr-defined]
    assert bars == pytest.approx(
        {-0.3: 90.0, 0.7: 80.0, -0.1: 95.0, 1.1: 50.0, 0.3: 30.0, 1.3: 79.0}
    )  # kinds from the left: original, in, out, ablated
    assert [label.get_text() for label in axes.get_xticklabels()] == ["hue", "size"]
    assert "ablated: the latents of hue" in axes.get_title()
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == ["chance", "original", "edited, in caption", "edited, not in caption", "ablated"]
    (path,) = attribute_figures.draw_accuracies([evaluated(entries=entries)], tmp_path)
    assert path.name == "task-test-run.png"


def test_a_run_whose_mask_keeps_all_has_no_edited_bars(entries: dict[str, Any]) -> None:
    """All nine kinds fit, in and out of a caption told apart by a hatch."""
    for kind in ("value_in", "value_out", "category_in", "category_out", "rebuilt"):
        entries |= {f"accuracy_{kind}{end}": entries["accuracy_original:hue"] for end in ("", ":hue")}
    every = attribute_figures.accuracies(evaluated(entries=entries))
    assert every.legends[0].get_texts()[3].get_text() == "edited, in caption"
    assert len({(bar.get_facecolor(), bar.get_hatch()) for bar in every.axes[0].patches}) == 9
    for entry in entries.values():
        entry.provenance.config["mask"] = "none"
    figure = attribute_figures.accuracies(evaluated(entries=entries))
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == [
        "chance", "original", "rebuilt", "value mask, in caption", "value mask, not in caption",
        "category mask, in caption", "category mask, not in caption", "ablated",
    ]  # fmt: skip
