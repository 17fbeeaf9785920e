"""The guide page "Bring your model and your data" is what it says: its blocks, in order, in an empty folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from froude import Study
from froude.store import Location

FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INSTALL = "python -m pip install"  # what it installs is in the environment of the tests


def script(page: str) -> tuple[str, list[str]]:
    """The page as one shell script, and the files that it writes; a block of Python begins with its file's name."""
    lines, files = ["set -e -o pipefail"], []
    for language, text in FENCE.findall(page):
        if language == "sh":
            lines += ["", *(line for line in text.splitlines() if not line.startswith(INSTALL))]
            continue
        assert language == "python", f"a block of {language}: neither run nor written"
        name = text.split("\n", 1)[0].removeprefix("# ")
        assert re.fullmatch(r"\w+\.py", name), (
            f"a block of Python must begin with its file's name, but has {name!r}"
        )
        files.append(name)
        lines += ["", f"cat > {name} <<'END OF FILE'", text.rstrip(), "END OF FILE"]
    return "\n".join(lines) + "\n", files


@pytest.fixture(scope="module")
def folder(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty folder once all of the page has been done in it; what was printed is in `out.txt`."""
    place = tmp_path_factory.mktemp("newcomer")
    text, files = script((root / "docs/guide/bring-your-own.md").read_text(encoding="utf-8"))
    assert files == ["prepare.py", "my_data.py", "my_models.py", "my_space.py", "check_leak.py"]
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    own["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{own['PATH']}"
    with (place / "out.txt").open("wb") as out:
        done = subprocess.run(
            ["bash", "-c", text],
            cwd=place,
            env=own,
            stdout=out,
            stderr=subprocess.STDOUT,
            timeout=1200,
            check=False,
        )
    assert done.returncode == 0, (place / "out.txt").read_text(encoding="utf-8")[-4000:]
    return place


@pytest.mark.long
@pytest.mark.parametrize("model", ["gpt", "llama"])
def test_the_pages_models_are_swept_on_the_pages_data(folder: Path, model: str) -> None:
    trials = Study(Location.parse(folder / "runs" / model)).trials().collect()
    assert trials.height == 15
    assert trials.filter(pl.col("status") != "finished").height == 0
    # It learns: below a uniform guess among 1,024 tokens, and no less than the text allows.
    best = trials["loss"].min()
    assert isinstance(best, float)
    assert 3.0 < best < 6.5
    assert trials["leaked"].max() == 0.0


@pytest.mark.long
def test_both_sources_serve_the_same_tokens(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(folder))
    import my_data  # type: ignore[import-not-found]
    import my_space  # type: ignore[import-not-found]

    from froude.train.api import build_source
    from froude.train.data.order import validation_windows

    run = my_space.space().target
    other = run.replace({"data.source": "my_data:ParquetFile"})
    for split in ("train", "validation"):
        binary, parquet = build_source(run, split), build_source(other, split)
        assert binary.length == parquet.length > 500
        assert (validation_windows(binary, 50) == validation_windows(parquet, 50)).all()
        last = binary.read(binary.length - 2, 2)
        assert last.shape == (2, 65)
        assert (last[0, -1] == last[1, 0]).all()
    # The hash is the files', the same of both splits, and another once a byte has changed.
    before = [my_data.BinFile(run, split).sha256 for split in ("train", "validation")]
    assert before[0] == before[1]
    with (folder / "validation.bin").open("r+b") as file:
        first = file.read(1)
        file.seek(0)
        file.write(bytes([first[0] ^ 1]))
    assert my_data.BinFile(run, "train").sha256 != before[0]
    with (folder / "validation.bin").open("r+b") as file:
        file.write(first)


@pytest.mark.long
def test_the_pages_checks_say_something(folder: Path) -> None:
    out = (folder / "out.txt").read_text(encoding="utf-8")
    assert "0.0% of the validation data is in the training split" in out
    assert "coordinate check over width passed" in out
    assert out.count("15 finished") == 2
