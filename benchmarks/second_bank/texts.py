"""The second bank's four corpora, from Debian packages that have not changed since 2023; none is in the repository.

go, rust, c: the sources in golang-1.19-src 1.19.8-2 (BSD), rust-src 1.63.0+dfsg1-2 (MIT or Apache 2.0), gcc-12-source
12.2.0-14+deb12u1 (GPL-3+). manuals: the words of the HTML pages of racket-doc 8.7+dfsg1-1, erlang-doc, sagemath-doc
9.5-6, ghc-doc 9.0.2-4 and cppreference-doc-en-html 20170409-2. Files follow each other by the hash of their paths;
of lines longer than eight characters the first of its kind stays, and of the whole the first SIZE bytes.

    python benchmarks/second_bank/texts.py FOLDER       # fetches the packages with apt-get, some 300 MB
"""

from __future__ import annotations

import hashlib
import html
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "bank"))
from corpora import without_repeats

SIZE = 38_000_000
READ = 110_000_000  # bytes of a corpus's files that are looked at
MARKUP = re.compile(r"<(script|style)\b.*?</\1>|<[^>]*>", re.DOTALL | re.IGNORECASE)
EMPTY = re.compile(r"\n\s*\n+")
PACKAGES = {
    "go": ("golang-1.19-src",),
    "rust": ("rust-src",),
    "c": ("gcc-12-source",),
    "manuals": ("racket-doc", "erlang-doc", "sagemath-doc", "ghc-doc", "cppreference-doc-en-html"),
}
SUFFIXES = {"go": (".go",), "rust": (".rs",), "c": (".c", ".h"), "manuals": (".html",)}
#: Of the texts as they are trained on.
SHA256 = {
    "go": "2ac356b28da125c913b073c57469c765e769f4884b233baf564026ba383ced80",
    "rust": "15be5bb95b10f49d39d242bfc99cc308fbe32a24bf5c84bee7cb137188f6a62d",
    "c": "f2c50757281a90fb7c0d4b5fa8e17c142f0f982b8d2a0ce071a20f605cd392b5",
    "manuals": "6b0b516ada78f09495e12f88586b1d9ad588e79a18359b6914548d27a1eadd6c",
}


def words(page: str) -> str:
    """A page of HTML without its markup and empty lines."""
    return EMPTY.sub("\n", html.unescape(MARKUP.sub("", page)))


def pages(package: str, suffixes: tuple[str, ...], clean: Callable[[str], str] | None) -> Iterator[bytes]:
    """The texts of a package's files with these suffixes, in the order of their paths' hashes."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        subprocess.run(["apt-get", "-qq", "download", package], cwd=place, check=True)
        (archive,) = place.glob(f"{package}_*.deb")
        subprocess.run(["dpkg-deb", "-x", archive, place], check=True)
        archive.unlink()
        for inner in sorted(place.rglob("*.tar.xz")):
            subprocess.run(["tar", "-xJf", inner, "-C", place], check=True)
        found = (file for file in place.rglob("*") if file.suffix in suffixes and file.is_file())
        paths = [file for file in found if not file.is_symlink()]
        paths.sort(key=lambda file: hashlib.sha256(str(file.relative_to(place)).encode()).digest())
        for path in paths:
            text = path.read_bytes().decode("utf-8", "replace")
            yield (clean(text) if clean else text).encode()


def made(corpus: str) -> bytes:
    """The corpus, as its packages are today."""
    texts, read = [], 0
    packages = PACKAGES[corpus]
    for package in packages:
        own = 0
        for text in pages(package, SUFFIXES[corpus], words if corpus == "manuals" else None):
            texts.append(text)
            own += len(text)
            if own > READ / len(packages):
                break
        read += own
    texts.sort(key=lambda text: hashlib.sha256(text).digest())
    cut = without_repeats(b"".join(texts))[:SIZE]
    return cut.decode("utf-8", "ignore").encode()


def text(corpus: str, folder: Path) -> Path:
    """The corpus as a file in `folder`; SystemExit where its packages are of another version."""
    file = folder / f"{corpus}.txt"
    if not file.exists():
        data = made(corpus)
        found = hashlib.sha256(data).hexdigest()
        if found != SHA256[corpus]:
            raise SystemExit(
                f"the corpus {corpus} must have SHA-256 {SHA256[corpus]}, but the packages give {found}; "
                "install the versions that this file names"
            )
        folder.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(".part")
        part.write_bytes(data)
        part.replace(file)
    return file


if __name__ == "__main__":
    for corpus in PACKAGES:
        path = text(corpus, Path(sys.argv[1]))
        print(
            f'    "{corpus}": "{hashlib.sha256(path.read_bytes()).hexdigest()}",  # {path.stat().st_size} bytes'
        )
