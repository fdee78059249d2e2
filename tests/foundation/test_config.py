from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import Field

from vlpipe.foundation.config import Config, parse_sets, read_toml, resolve
from vlpipe.foundation.errors import UnknownNameError, UsageError, VlpipeError


class Oven(Config):
    degrees: float = Field(default=180.0, gt=0)
    fan: bool = False
    name: str = "oven"
    racks: list[int] = Field(default=[1])


def test_later_layers_win() -> None:
    assert resolve(Oven, {"degrees": 200.0, "fan": True}, {"degrees": 220.0}) == Oven(degrees=220.0, fan=True)


def test_values_are_read_by_tomls_grammar() -> None:
    found = parse_sets(["degrees=1e-4", "fan = true", 'name="a = b"', "racks=[1, 2]"])
    assert found == {"degrees": 0.0001, "fan": True, "name": "a = b", "racks": [1, 2]}
    assert resolve(Oven, found).degrees == 0.0001


def test_an_unknown_key_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'degrees'"):
        resolve(Oven, {"degree": 1.0})


@pytest.mark.parametrize(
    "layer",
    [{"degrees": "1e-4"}, {"degrees": -1.0}, {"degrees": float("nan")}, {"fan": 1}, {"name": 3}, {"racks": [0.5]}],
)
def test_types_are_checked_at_the_door(layer: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=next(iter(layer))):
        resolve(Oven, layer)


def test_a_whole_number_is_a_fine_float() -> None:
    assert resolve(Oven, {"degrees": 200}).degrees == 200.0


@pytest.mark.parametrize("text", ["degrees", "=3", "name=plain words", "degrees=", "degrees=1\nfan=true"])
def test_an_assignment_that_does_not_parse(text: str) -> None:
    with pytest.raises(UsageError, match="--set"):
        parse_sets([text])


def test_a_configuration_file_that_is_not_there_or_not_toml(tmp_path: Path) -> None:
    with pytest.raises(VlpipeError, match="does not exist"):
        read_toml(tmp_path / "x.toml")
    (tmp_path / "x.toml").write_text("degrees: 3")
    with pytest.raises(VlpipeError, match="is not TOML"):
        read_toml(tmp_path / "x.toml")
    with pytest.raises(VlpipeError, match="directory; give a TOML file"):
        read_toml(tmp_path)
