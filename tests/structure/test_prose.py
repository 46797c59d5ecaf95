"""Pages are easy to read: short paragraphs, short sentences, the field's words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.structure.pages import ALL_PAGES, REFERENCE, ROOT_PAGES, label

PARAGRAPH, SENTENCE = 60, 25
# Chinese has no spaces between words. What `docs.generate` and the sweeps write has the words of the source.
GENERATED = {
    "errors.md",
    "options.md",
    "ops.md",
    "environment.md",
    "passes.md",
    "models.md",
    "models_cuda.md",
}
PAGES = [
    page
    for page in ALL_PAGES
    if page.name != "README.zh.md"
    and page.parent != REFERENCE / "api"
    and not (page.parent == REFERENCE and page.name in GENERATED)
]
FENCE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
# Headings, tables, admonition titles and HTML comments are no sentences.
NOT_PROSE = re.compile(r"^ *(?:#|\||!!!|<!--|---$)")
ITEM = re.compile(r"^ *(?:[*-]|\d+\.) ")
# The end of a sentence: not the dot of `a.b` or of a number.
END = re.compile(r"(?<=[.!?])[)*\"”]*\s+(?=\S)")
CODE = re.compile(r"(`+).+?\1")
LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
# Idioms that readers from elsewhere trip over, and what to write.
IDIOMS = {
    r"(?<![Tt]here )\bis no\b(?! `| longer)": "is not a",
    r"(?<![Tt]here )\bare no\b(?! (?:\w+ )?(?:tests?|cycles|device))": "are not",
    r"\b(?i:whoever)\b": "users who, the caller",
    r"\b[Nn]obody\b": "name the reader",
    r"\b(?:is|are|was|were) told\b": "warned, logged, reported",
    r"\bstands? (?:in|at|beside|before|behind|for itself)\b": "is in",
    r"\bbeside\b": "next to, besides",
    r"\bbehind (?:it|the|this|that|them)\b(?! calls)": "after",
    r"\b(?:optimis|normalis|initialis|recognis|organis|serialis)\w*": "-ize",
    r"\b(?:artefact|behaviour|colour|analys(?:e|ing)\b|catalogue|neighbour)\w*": "American spelling",
    r"(?:^|[.:] )(?:Who|Whose|Those who|What is|Of (?:the|two|what))\b[^?\n]*$": "a noun as subject",
}


def paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of each paragraph and list item; code and tables are left out."""
    text = FENCE.sub(lambda match: "\n" * match.group(0).count("\n"), text)
    start, lines = 0, []
    for number, line in enumerate([*text.splitlines(), ""], start=1):
        if not line.strip() or NOT_PROSE.match(line) or ITEM.match(line):
            if lines:
                yield start, " ".join(lines)
            start, lines = number, []
            if line.strip() and not NOT_PROSE.match(line):
                lines = [ITEM.sub("", line).strip()]
            continue
        if not lines:
            start = number
        lines.append(line.strip())


def sentences(paragraph: str) -> list[str]:
    """Split a paragraph; code spans and links count as their text, without splitting inside."""
    plain = LINK.sub(r"\1", CODE.sub("code", paragraph)).replace("e.g.", "eg").replace("i.e.", "ie")
    return [part for part in END.split(plain) if part]


def words(text: str) -> int:
    return len([word for word in text.split() if re.search(r"\w", word)])


def too_long(page: Path) -> list[str]:
    """Describe each paragraph and sentence of a page that is over its limit."""
    found = []
    for line, text in paragraphs(page.read_text(encoding="utf-8")):
        parts = sentences(text)
        if (count := sum(map(words, parts))) > PARAGRAPH:
            found.append(f"{label(page)}:{line}: a paragraph of {count} words: {text[:60]}…")
        found += [
            f"{label(page)}:{line}: a sentence of {words(part)} words: {part}"
            for part in parts
            if words(part) > SENTENCE
        ]
    return found


def idioms(text: str) -> list[str]:
    """Describe each phrase of a text that reads badly, with a proposal."""
    plain = LINK.sub(r"\1", CODE.sub("code", FENCE.sub("", text)))
    found = []
    for pattern, instead in IDIOMS.items():
        found += [f"{match.group(0)!r}: {instead}" for match in re.finditer(pattern, plain, re.MULTILINE)]
    return found


@pytest.mark.parametrize("page", PAGES, ids=label)
def test_paragraphs_and_sentences_are_short(page: Path) -> None:
    found = too_long(page)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("page", PAGES, ids=label)
def test_words_are_plain(page: Path) -> None:
    found = idioms(page.read_text(encoding="utf-8"))
    assert not found, "\n".join(found)


def test_root_pages_are_measured() -> None:
    assert set(ROOT_PAGES) <= set(PAGES)


def test_a_long_sentence_and_a_long_paragraph_are_found(tmp_path: Path) -> None:
    long = " ".join(["word"] * (SENTENCE + 1)) + "."
    assert words(sentences(long)[0]) == SENTENCE + 1
    text = (
        "# Title\n\n```python\n"
        + long
        + "\n```\n\n| "
        + long
        + " |\n\n* one\n* "
        + long
        + "\n\nEnd. Of `a.b`.\n"
    )
    found = list(paragraphs(text))
    assert [line for line, _ in found] == [9, 10, 12]
    assert sentences(found[2][1]) == ["End.", "Of code."]


@pytest.mark.parametrize(
    "text", ["It is no pass.", "Who waits is told.", "The artefact.", "Ops stand in files"]
)
def test_an_idiom_is_found(text: str) -> None:
    assert idioms(text)
