"""The third bank's eight corpora, from packages of Debian 12; none is in the repository.

Files are cut at line ends into pieces of about PIECE bytes, which follow each other by their hashes; of lines longer
than eight characters the first of its kind stays, and of the whole the first SIZE bytes. Licences: GPL (dictionary,
lisp, pascal, the manual pages), MPL 2.0 (the help of LibreOffice), Apache 2.0 (erlang, typescript), Boost's (cpp).
snapshot.debian.org has versions that are no longer offered.

    python benchmarks/third_bank/packages.py FOLDER       # fetches them with apt-get, some 100 MB
"""

from __future__ import annotations

import gzip
import hashlib
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

sys.path += [str(Path(__file__).resolve().parents[1] / bank) for bank in ("bank", "second_bank")]
from corpora import without_repeats
from texts import words

SIZE = 11_000_000
PIECE = 65_536
READ = 60_000_000  # bytes of a package's files that are looked at
#: Packages and how the names of their files end.
PACKAGES = {
    "dictionary": (("dict-freedict-eng-deu",), (".dict.dz",)),  # 2022.04.21-1
    "german": (("libreoffice-help-de", "manpages-de"), (".html", ".1.gz", ".5.gz", ".7.gz", ".8.gz")),
    "romance": (("libreoffice-help-fr", "libreoffice-help-es", "libreoffice-help-it"), (".html",)),
    "lisp": (("emacs-el",), (".el.gz",)),  # 1:28.2+1-15+deb12u4
    "erlang": (("erlang-src",), (".erl", ".hrl")),  # 1:25.2.3+dfsg-1+deb12u4
    "pascal": (("fpc-source-3.2.2",), (".pas", ".pp")),  # 3.2.2+dfsg-20
    "typescript": (("node-typescript",), (".ts", ".js")),  # 4.8.4+ds1-2
    "cpp": (("libboost1.74-dev",), (".hpp", ".ipp")),  # 1.74.0+ds1-21
}
#: Of the texts as they are trained on. LibreOffice's help is of 4:7.4.7-1+deb12u14, manpages-de of 4.18.1-1.
SHA256 = {
    "dictionary": "d04f62b34204fa25e702308d18fa6c8cfe09d3020e98df32b2add07306fbd214",
    "german": "bbdb32f50d54d74d86d49e67e0cc7cf0c16492adefedbde66af5d10f1327c195",
    "romance": "2b78adcd1ecbaaa06de95815b552953b254620752a9847b37f849ce290f6b4f2",
    "lisp": "83c1fb09f70c6faa359ac156eaf648997dcdd06a2e320eb957c7348f9415e36c",
    "erlang": "78bc94b39cd3fcb84e2e64e172e4404d85034d0b0b776036df4e4ead5090dcec",
    "pascal": "935517f2df18bb9150623fb28452d2363ce60d5214700742f0c0e4f0ccb73699",
    "typescript": "fb1ce15282631c2b250e7450dde8cee5a534660d92f24a0ec8d74f71ba935b58",
    "cpp": "45a67ae2d694674d22503cdb474562ccca881d884d7294ff08bc41d278034430",
}


def files(package: str, ends: tuple[str, ...]) -> Iterator[tuple[str, bytes]]:
    """Paths and contents of a package's files whose names end so, those in archives included."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        subprocess.run(["apt-get", "-qq", "download", package], cwd=place, check=True)
        (archive,) = place.glob(f"{package}_*.deb")
        subprocess.run(["dpkg-deb", "-x", archive, place], check=True)
        for path in sorted(place.rglob("*")):
            if path.is_symlink() or not path.is_file():
                continue
            if path.suffix == ".zip":
                with zipfile.ZipFile(path) as inner:
                    yield from ((each, inner.read(each)) for each in inner.namelist() if each.endswith(ends))
            elif path.name.endswith(ends):
                data = path.read_bytes()
                packed = path.suffix in (".gz", ".dz")
                yield str(path.relative_to(place)), gzip.decompress(data) if packed else data


def pieces(package: str, ends: tuple[str, ...]) -> Iterator[bytes]:
    """The files as UTF-8, HTML without its markup, cut at line ends, by the hashes of their paths."""
    read = 0
    for path, data in sorted(
        files(package, ends), key=lambda file: hashlib.sha256(file[0].encode()).digest()
    ):
        text = data.decode("utf-8", "replace")
        own, size = [], 0
        for line in (words(text) if path.endswith(".html") else text).encode().splitlines(keepends=True):
            own.append(line)
            size += len(line)
            if size >= PIECE:
                yield b"".join(own)
                own, size = [], 0
        yield b"".join(own)
        read += len(data)
        if read > READ:
            return


def made(corpus: str) -> bytes:
    """The corpus, as its packages are today."""
    packages, ends = PACKAGES[corpus]
    found = [piece for package in packages for piece in pieces(package, ends)]
    found.sort(key=lambda piece: hashlib.sha256(piece).digest())
    return without_repeats(b"".join(found))[:SIZE].decode("utf-8", "ignore").encode()


def text(corpus: str, folder: Path) -> Path:
    """The corpus as a file in `folder`; SystemExit where its packages are of another version."""
    file = folder / f"{corpus}.txt"
    data = file.read_bytes() if file.exists() else made(corpus)
    found = hashlib.sha256(data).hexdigest()
    if found != SHA256[corpus]:
        raise SystemExit(
            f"the corpus {corpus} must have SHA-256 {SHA256[corpus]}, but "
            f"{file if file.exists() else 'the packages'} have {found}; install the versions that this file names"
        )
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(".part")
        part.write_bytes(data)
        part.replace(file)
    return file


if __name__ == "__main__":
    for corpus in PACKAGES:
        print(f"{text(corpus, Path(sys.argv[1]))}: SHA-256 {SHA256[corpus]}")
