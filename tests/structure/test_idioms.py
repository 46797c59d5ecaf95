"""Idioms that plain technical English does not use stay out of docstrings, comments, messages and docs.

Each idiom has the number of places that still have it. A number may only go down: a change that adds a place
fails here, and a change that removes places lowers the number with `python -m tests.structure.test_idioms`.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.structure.tree import PACKAGE, ROOT, files, parse


class Idiom(NamedTuple):
    """What is not written, why, and in how many places it still is."""

    pattern: str
    reason: str
    limit: int


IDIOMS = {
    "is no": Idiom(
        r"(?<!here )\b(?:is|are|was|were) no (?!longer\b|more\b|less\b)[a-z]", "write 'is not a …'", 159
    ),
    "headless clause": Idiom(
        r"(?:\A|(?<=[.!?]\s))(?:Who|Whose|Whoever|Whatever|Of|What)\s(?![^.?]*\?)",
        "a sentence begins with its subject: 'the caller …', 'users who …', 'the value that …'",
        49,
    ),
    "whoever": Idiom(r"\b[Ww]ho(?:m?ever)\b", "name the agent: the caller, the user, the worker", 1),
    "nobody": Idiom(
        r"\b(?:[Nn]o|[Ss]ome|[Aa]ny|[Ee]very)body\b", "name the agent: the caller, the user", 219
    ),
    "whose": Idiom(r"\b[Ww]hose\b", "two sentences, or 'with', 'that has'", 163),
    "told": Idiom(r"\b[Tt]old\b", "torchair warns, logs, raises or reports", 7),
    "said": Idiom(r"\b[Ss]aid\b", "torchair warns, logs, raises or reports", 1),
    "says": Idiom(
        r"\b[Ss]ays? (?:so|why|what|which|how|where|nothing)\b",
        "warns, logs, reports, declares",
        20,
    ),
    "news": Idiom(r"\b[Nn]ews\b", "event, message", 0),
    "behind": Idiom(r"\b[Bb]ehind\b", "after, downstream of", 8),
    "beside": Idiom(r"\b[Bb]eside\b", "next to, besides, in addition to", 9),
    "at once": Idiom(r"\b[Aa]t once\b", "'immediately' or 'at the same time'", 15),
    "taken apart": Idiom(r"\b(?:take[ns]?|took) (?:\w+ )?apart\b", "decomposed", 0),
    "carried through": Idiom(r"\b[Cc]arr(?:y|ies|ied) (?:\w+ )?through\b", "kept as an opaque op", 3),
    "taken for granted": Idiom(r"\bfor granted\b", "assumed, guarded", 0),
    "detour": Idiom(r"\b[Dd]etours?\b|\bgoes around\b", "fallback", 2),
    "less than promised": Idiom(r"\bless than promised\b", "torchair falls back to …", 1),
    "better program": Idiom(r"\b[Bb]etter programs?\b|\bget better\b", "optimized program", 5),
    "workshop": Idiom(r"\b[Ww]orkshops?\b", "worker process, worker pool", 0),
    "witness": Idiom(r"\b[Ww]itness(?:es)?\b|\bto blame\b", "cross-check, cause", 0),
    "let go": Idiom(r"\b(?:let|lets) (?:\w+ )?go\b", "release", 0),
    "of ours": Idiom(r"\bof (?:ours|theirs)\b", "built-in, user-defined", 0),
    "mend": Idiom(r"\b[Mm]end(?:s|ed|ing)?\b", "fix", 2),
    "in silence": Idiom(r"\b[Ii]n silence\b|\bwithout a word\b", "silently", 0),
    "such a": Idiom(r"\b[Ss]uch an? \w+ (?:is|has|can|may)\b", "name the thing again", 6),
    "British spelling": Idiom(
        r"\b(?:[Aa]rtefact|(?:[Oo]ptim|[Nn]ormal|[Ii]nitial|[Ss]erial|[Rr]ecogn|[Ss]pecial|[Qq]uant|[Rr]ealis)is"
        r"(?:e|ed|es|er|ing|ation)|[Bb]ehaviour|[Aa]nalyse|[Cc]olour|[Nn]eighbour|[Cc]ancelled|[Ll]abell|[Mm]odell)",
        "American spelling, as torch",
        7,
    ),
}
GENERATED = ROOT / "docs" / "reference"


class Text(NamedTuple):
    """A docstring, comment, message or page, and where it begins."""

    file: str
    line: int
    text: str


def python_texts(path: Path) -> Iterator[Text]:
    """Yield the strings and comments of a module. Comments of consecutive lines are one text."""
    name = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield Text(name, node.lineno, node.value.strip())
    begin, lines, last = 0, list[str](), 0
    for token in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline):
        if token.type != tokenize.COMMENT:
            continue
        if token.start[0] != last + 1 and lines:
            yield Text(name, begin, "\n".join(lines))
            lines = []
        if not lines:
            begin = token.start[0]
        lines.append(token.string.lstrip("# "))
        last = token.start[0]
    if lines:
        yield Text(name, begin, "\n".join(lines))


def all_texts() -> Iterator[Text]:
    """Yield what the package and the pages written by hand say."""
    for path in files():
        if path.suffix == ".py" and path.is_relative_to(PACKAGE) and not path.name.endswith("_pb2.py"):
            yield from python_texts(path)
        elif path.suffix == ".md" and not path.is_relative_to(GENERATED):
            for place, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                yield Text(path.relative_to(ROOT).as_posix(), place, line.strip())


def found_in(texts: list[Text]) -> dict[str, list[str]]:
    """Return the places of each idiom as `file:line: words`."""
    found: dict[str, list[str]] = defaultdict(list)
    patterns = {
        name: re.compile(re.sub(r"(?<!here) ", r"\\s+", idiom.pattern)) for name, idiom in IDIOMS.items()
    }
    for file, line, text in texts:
        for name, pattern in patterns.items():
            for match in pattern.finditer(text):
                place = line + text.count("\n", 0, match.start())
                words = " ".join(text[max(0, match.start() - 25) : match.end() + 25].split())
                found[name].append(f"{file}:{place}: {words}")
    return found


@pytest.fixture(scope="module")
def places() -> dict[str, list[str]]:
    return found_in(list(all_texts()))


@pytest.mark.parametrize("name", IDIOMS)
def test_idiom_count_does_not_grow(name: str, places: dict[str, list[str]]) -> None:
    _, reason, limit = IDIOMS[name]
    found = places.get(name, [])
    assert len(found) <= limit, f"{name!r}: {reason}\n{len(found)} places, at most {limit}:\n" + "\n".join(
        found
    )


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("is no", "it is no\nop"),
        ("headless clause", "Who waits, waits."),
        ("headless clause", "Short. What is left stays."),
        ("whoever", "Whoever asks"),
        ("told", "this is told"),
        ("behind", "the ops behind it"),
        ("British spelling", "an optimised artefact"),
    ],
)
def test_idiom_is_found(name: str, text: str) -> None:
    assert name in found_in([Text("a.py", 1, text)])


@pytest.mark.parametrize(
    "text", ["it is no longer used", "What is an op?", "call on_optimised()", "Often used."]
)
def test_plain_text_has_no_idiom(text: str) -> None:
    assert found_in([Text("a.py", 1, text)]) == {}


def test_strings_and_comments_have_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text('"""First.\n\nThis is told."""\nx = 1  # whoever\n# asks at\n# once\n')
    found = found_in(list(python_texts(path)))
    assert found["told"] == ["module.py:3: First. This is told."]
    assert found["whoever"] == ["module.py:4: whoever asks at once"]
    assert found["at once"] == ["module.py:5: whoever asks at once"]


def lower_limits() -> None:
    """Write today's counts into the table above where they are lower."""
    path = Path(__file__)
    found, lines = found_in(list(all_texts())), path.read_text(encoding="utf-8").splitlines(keepends=True)
    name = ""
    for place, line in enumerate(lines):
        if match := re.match(r'    "([^"]+)": Idiom\(', line):
            name = match[1]
        count = len(found.get(name, []))
        if name and (limit := re.search(r"(?<=[ ])(\d+)(?=\),?$|,$)", line.rstrip("\n"))):
            if int(limit[1]) > count:
                lines[place] = line[: limit.start()] + str(count) + line[limit.end() :]
            print(f"{name:20} {limit[1]:>5} -> {min(count, int(limit[1]))}")
            name = ""
    path.write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    lower_limits()
