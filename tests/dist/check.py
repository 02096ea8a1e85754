"""Checks the wheel and the source distribution in a directory: `python tests/dist/check.py dist`.

- The metadata of both follow the specification, and the description is Markdown with every link
  and picture of this repository in the source distribution.
- The wheel holds each file of `src/surehold` that git knows, stubs, templates and `py.typed`
  included, and nothing else.
- A wheel that is built from the unpacked source distribution has the same contents.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from packaging.metadata import Metadata

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\]\((?![a-z]+:|#)([^)#]+)")


def main(directory: Path) -> int:
    (wheel,) = directory.glob("*.whl")
    (source,) = directory.glob("*.tar.gz")
    with tempfile.TemporaryDirectory() as scratch, tarfile.open(source) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # since 3.11.4
        archive.extractall(scratch)
        (unpacked,) = Path(scratch).iterdir()
        packed = contents(wheel)
        problems = [
            *wrong_contents(packed),
            *wrong_metadata(packed, unpacked),
            *wrong_rebuild(packed, unpacked),
        ]
    print(*problems or [f"{wheel.name}: {len(packed)} files", source.name], sep="\n")
    return 1 if problems else 0


def contents(wheel: Path) -> dict[str, bytes]:
    """The files of *wheel* by name."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def wrong_contents(packed: dict[str, bytes]) -> list[str]:
    """Files of the package that *packed* lacks, and those that are not part of it."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "surehold"]
    listed = subprocess.check_output(command, cwd=ROOT / "src", text=True).split("\n")
    expected = {name for name in listed if name and (ROOT / "src" / name).exists()}
    found = {name for name in packed if not name.split("/")[0].endswith(".dist-info")}
    return [
        *(f"missing in the wheel: {name}" for name in sorted(expected - found)),
        *(f"not part of the package: {name}" for name in sorted(found - expected)),
    ]


def wrong_metadata(packed: dict[str, bytes], unpacked: Path) -> list[str]:
    """Reasons why an index would refuse the distributions, or not show their description."""
    (name,) = (name for name in packed if name.endswith(".dist-info/METADATA"))
    if (unpacked / "PKG-INFO").read_bytes() != packed[name]:
        return ["wheel and source distribution differ in their metadata"]
    told = Metadata.from_email(packed[name])  # raises if they are not valid
    if told.description_content_type != "text/markdown" or not told.description:
        return ["the description is not Markdown"]
    return [
        f"the description links to {link}, which is in no distribution"
        for link in LINK.findall(told.description)
        if not (unpacked / link).exists()
    ]


def wrong_rebuild(packed: dict[str, bytes], unpacked: Path) -> list[str]:
    """Files that differ in a wheel built from *unpacked*."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", "again"]
    subprocess.run(command, cwd=unpacked, check=True, capture_output=True)
    (wheel,) = (unpacked / "again").glob("*.whl")
    again = contents(wheel)
    return [
        f"differs if built from the source distribution: {name}"
        for name in sorted(packed.keys() | again.keys())
        if packed.get(name) != again.get(name)
    ]


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
