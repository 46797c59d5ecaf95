"""`python -m torchair cache`: where names may stand. `tests/inference/test_cache_compile.py` has the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchair.__main__ import main
from torchair.backend.cache_key import FILE
from torchair.core.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path / "kept", FILE)
    for key in ("First/step", "Second/step", "Third/step"):
        store.put(key, {}, {})
    return store


@pytest.mark.parametrize("words", [
    ["First", "Second", "--dir", "{}"], ["--dir", "{}", "First", "Second"],
    ["First", "--dir", "{}", "Second"], ["--dir={}", "First", "--file", "kept.tar", "Second"],
])  # fmt: skip
def test_names_stand_anywhere(words: list[str], store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    given = [word.format(store.root) for word in words]
    for act, text in (("ls", "First/step"), ("verify", "2 of 2"), ("why-miss", "Second/step: ")):
        main(["cache", act, *given])
        said = capsys.readouterr().out
        assert text in said
        assert "Third" not in said
    assert main(["cache", "rm", *given]) == 0
    assert set(store.keys()) == {"Third/step"}


def test_names_to_export(store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "kept.tar")
    assert main(["cache", "export", "--dir", str(store.root), "--file", file, "First"]) == 0
    assert capsys.readouterr().out == f"1 entries are in {file}\n"


@pytest.mark.parametrize(("words", "text"), [
    (["cache", "rm", "--dir", "kept", "First", "--colour"], "unrecognized arguments: First --colour"),
    (["cache", "rm", "--colour", "First"], "unrecognized arguments: --colour"),
    (["show", "a.air", "b.air"], "unrecognized arguments: b.air"),
])  # fmt: skip
def test_what_is_no_name_is_refused(words: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(words)
    assert text in capsys.readouterr().err
