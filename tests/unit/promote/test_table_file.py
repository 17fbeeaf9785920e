"""Files of rows as spreadsheets, trackers and data frames write them."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from froude.config import ConfigError
from froude.promote.imported_runs import table_file
from froude.store import Location

ROWS = {"run": ["a", "b"], "params": [1_000_000, 2_000_000], "loss": [3.1, None]}


def read(tmp_path: Path, name: str, content: bytes) -> pl.DataFrame:
    (tmp_path / name).write_bytes(content)
    return table_file.read(Location.parse(tmp_path / name))


@pytest.mark.parametrize(
    ("name", "delimiter"), [("a.csv", ","), ("a.csv", ";"), ("a.csv", "\t"), ("a.tsv", "\t")]
)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_text_may_have_any_delimiter(tmp_path: Path, name: str, delimiter: str, end: str, mark: str) -> None:
    lines = ["run,params,loss", "a,1000000,3.1", "b,2000000,"]
    content = mark + end.join(lines).replace(",", delimiter) + end
    assert read(tmp_path, name, content.encode()).to_dict(as_series=False) == ROWS


def test_a_comma_in_a_quoted_name_is_no_delimiter(tmp_path: Path) -> None:
    found = read(tmp_path, "a.csv", b'"run, its name";loss\n"a, b";3.1\n')
    assert found.to_dict(as_series=False) == {"run, its name": ["a, b"], "loss": [3.1]}


def test_text_of_an_old_spreadsheet_is_read(tmp_path: Path) -> None:
    found = read(tmp_path, "a.csv", "run,loss\ngrößer,3.1\n".encode("latin-1"))
    assert found["run"].to_list() == ["größer"]


@pytest.mark.parametrize("orient", [{"run": {"0": "a"}, "loss": {"0": 3.1}}, {"run": ["a"], "loss": [3.1]}])
def test_an_object_of_columns_is_refused_with_the_way_to_write_rows(tmp_path: Path, orient: object) -> None:
    with pytest.raises(ConfigError, match=r"array of objects.*orient='records'"):
        read(tmp_path, "a.json", json.dumps(orient).encode())


@pytest.mark.parametrize("name", ["a.csv", "a.parquet", "a"])
def test_a_folder_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(ConfigError) as error:
        table_file.read(Location.parse(tmp_path / name))
    assert str(error.value).startswith("a table of runs must be")
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize("name", ["a.csv", "mlruns", "wandb"])
def test_what_is_not_there_is_said_not_to_be(tmp_path: Path, name: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"a table of runs must be there, but .*{name} is not; correct the path"
    ):
        table_file.read(Location.parse(tmp_path / name))


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="must be valid"):
        read(tmp_path, "a.csv", b"")
