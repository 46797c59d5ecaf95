"""The repository speaks only of the project: no machine paths, no trackers, no hosts, no notes to self."""

from __future__ import annotations

import re

import pytest

from tests.structure.tree import ROOT, files

# Written so that no pattern matches its own source line.
FOREIGN = {
    "a machine path": re.compile(r"(?<![\w.])/(?:work|farm|root|home/\w+|Users/\w+)/"),
    "an issue or a review by number": re.compile(
        r"\b(?:issue|ticket|pull request|merge request|PR)\s?[#!]\s?\d+", re.IGNORECASE
    ),
    "a tracker": re.compile(r"\b(?:j[i]ra|bugz[i]lla)\b", re.IGNORECASE),
    "a registry host": re.compile(r"(?:index-url|find-links)\s*=?\s*\S*(?:file|https?)://", re.IGNORECASE),
    "a note to self": re.compile(r"\b(?:TO[D]O|FIX[M]E|X{3})\b"),
    "a conflict mark": re.compile(r"^(?:<{7}|>{7}) ", re.MULTILINE),
}
LARGEST = 600
TEXT_SUFFIXES = {".py", ".md", ".toml", ".yaml", ".yml", ".json", ".txt", ".cfg", ".proto", ".cpp", ".h", ""}


def texts() -> list[tuple[str, str]]:
    return [
        (path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"))
        for path in files()
        if path.suffix in TEXT_SUFFIXES
    ]


@pytest.mark.parametrize("what", FOREIGN)
def test_no_foreign_text(what: str) -> None:
    found = [
        f"{name}:{text.count(chr(10), 0, match.start()) + 1} {match.group(0)!r}"
        for name, text in texts()
        for match in FOREIGN[what].finditer(text)
    ]
    assert not found, f"{what}:\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("a machine path", "open('/" + "root/x')"),
        ("an issue or a review by number", "see issue " + "#12"),
        ("a tracker", "JI" + "RA"),
        ("a registry host", "--index-url " + "https://x"),
        ("a note to self", "# TO" + "DO later"),
        ("a conflict mark", "<" * 7 + " HEAD"),
    ],
)
def test_foreign_text_is_found(what: str, text: str) -> None:
    assert FOREIGN[what].search(text)


def test_every_pattern_is_tried() -> None:
    tried = {
        mark.args[1][row][0]
        for mark in test_foreign_text_is_found.pytestmark
        for row in range(len(mark.args[1]))
    }
    assert tried == set(FOREIGN)


def test_no_file_is_a_warehouse() -> None:
    """Hand-written code stays readable in one sitting; tables of data are json and exempt."""
    long = {
        name: text.count("\n")
        for name, text in texts()
        if name.startswith("torchair/") and name.endswith(".py")
    }
    assert not {
        name: lines for name, lines in long.items() if lines > LARGEST and not name.endswith("_pb2.py")
    }
