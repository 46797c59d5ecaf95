"""The commands for task traces: what they keep, find and time anew, and how they refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.process import python
from tests.support.slow import slow
from torchair.tools.gegraph_check.align_trace import align_trace_json
from torchair.tools.gegraph_check.align_trace import main as align_main
from torchair.tools.gegraph_check.deadlock_check import deadlock_check
from torchair.tools.gegraph_check.deadlock_check import main as deadlock_main
from torchair.tools.gegraph_check.filter_operators import filter_comm_ops
from torchair.tools.gegraph_check.filter_operators import main as filter_main

NEEDS = {"Task Type": "KERNEL_AIVEC", "Numblocks": 30, "Schem Mode": 1}


def task(stream: int, id: int, name: str, ts: float = 0, dur: float = 1, **args: Any) -> dict[str, Any]:
    named = {key.replace("_", " "): value for key, value in args.items()}
    shown = {"Task Id": id, **named}
    return {"name": name, "tid": f"stream{stream}", "ph": "X", "ts": ts, "dur": dur, "args": shown}


def talk(stream: int, id: int, name: str = "aiv_reduce", **args: Any) -> dict[str, Any]:
    return task(stream, id, name, **{key.replace(" ", "_"): value for key, value in NEEDS.items()}, **args)


def written(folder: Path, events: list[Any], name: str = "trace.json") -> Path:
    path = folder / name
    path.write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ns"}))
    return path


def read(path: str | Path) -> list[Any]:
    content = json.loads(Path(path).read_text())
    assert content["displayTimeUnit"] == "ns", "the rest of the file stays"
    return content["traceEvents"]


def times(path: str | Path) -> dict[str, tuple[float, float]]:
    return {e["name"]: (e["ts"], e["ts"] + e["dur"]) for e in read(path) if e.get("ph") == "X"}


def test_filter_keeps_order_and_communication(tmp_path: Path) -> None:
    mode = {"Schem_Mode": 1}
    events = [
        {"name": "process_name", "ph": "M", "tid": "stream1"},
        task(1, 1, "MatMul"),
        task(1, 2, "EVENT_RECORD_7"),
        task(1, 3, "hcom", extend_info=json.dumps({"taskType": "communication"}), **mode),
        task(1, 4, "other", extend_info=json.dumps({"taskType": "compute"})),
        talk(2, 5, "MoeDispatch"),
        task(2, 6, "MEM_WAIT_VALUE_3"),
    ]
    made = filter_comm_ops(written(tmp_path, events), None)
    assert made == str(tmp_path / "trace_filtered.json")
    assert [e["name"] for e in read(made)] == ["EVENT_RECORD_7", "hcom", "MoeDispatch", "MEM_WAIT_VALUE_3"]
    assert filter_comm_ops(tmp_path / "trace.json", tmp_path / "mine.txt") == str(tmp_path / "mine.txt")


def test_a_stream_that_another_starts_is_behind_it(tmp_path: Path) -> None:
    events = [
        task(1, 1, "EVENT_RECORD_1", ts=10, dur=5),
        task(1, 2, "STREAM_ACTIVE", ts=15, dur=1, Task_Type="STREAM_ACTIVE", Active_Stream_Id=9),
        task(9, 1, "EVENT_WAIT_4", ts=2, dur=3),
        task(9, 2, "EVENT_RECORD_5", ts=6, dur=3),
    ]
    made = filter_comm_ops(written(tmp_path, events), None, merge_gap=4.0)
    assert {e["tid"] for e in read(made)} == {"stream1"}
    # The stream ends at 16; 4 later its continuation begins, with the gaps it had.
    assert times(made) == {"EVENT_RECORD_1": (10, 15), "EVENT_WAIT_4": (20, 23), "EVENT_RECORD_5": (24, 27)}
    again = filter_comm_ops(made, tmp_path / "again.json", merge_gap=4.0)
    assert read(again) == read(made), "once more changes nothing, though task ids begin anew"


def test_risks_are_printed_and_marked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hcom = talk(2, 2, "hcom", extend_info={"taskType": "communication"})
    path = written(tmp_path, [talk(1, 1), hcom, task(2, 3, "EVENT_RECORD_1")])
    (conflict,) = deadlock_check(path, None, aivec_total=48)
    assert (conflict.first.name, conflict.second.name) == ("aiv_reduce", "hcom")
    assert "aiv_reduce" in capsys.readouterr().out
    marked = {e["name"]: e["dur"] for e in read(tmp_path / "trace_deadlock_check.json")}
    assert marked == {"dead_lock_aiv_reduce": 49.5, "dead_lock_hcom": 49.5, "EVENT_RECORD_1": 1}


def test_without_a_risk_nothing_is_written(tmp_path: Path) -> None:
    path = written(tmp_path, [talk(1, 1), talk(2, 2)])
    assert deadlock_check(path, None, aivec_total=60) == []
    assert sorted(tmp_path.iterdir()) == [path]


def test_waits_end_where_their_records_end(tmp_path: Path) -> None:
    events = [
        {"name": "thread_name", "ph": "M", "tid": "stream1", "args": {"name": "first"}},
        task(1, 1, "compute", ts=100, dur=50),
        task(1, 2, "EVENT_RECORD_7", ts=150, dur=1),
        task(2, 3, "EVENT_WAIT_7", ts=0, dur=2),
        task(2, 4, "after", ts=5, dur=10),
        task(3, 5, "EVENT_WAIT_7", ts=200, dur=5),
    ]
    events[-1]["name"] = "EVENT_WAIT_late_7"
    made = align_trace_json(written(tmp_path, events), None)
    assert made == str(tmp_path / "trace.aligned.json")
    assert read(made)[0]["name"] == "thread_name", "names of streams stay"
    assert times(made) == {
        "compute": (100, 150),
        "EVENT_RECORD_7": (150, 151),
        "EVENT_WAIT_7": (0, 151),
        "after": (154, 164),  # pushed back, with the gap it had
        "EVENT_WAIT_late_7": (200, 200),  # the record was long over
    }


def test_an_event_that_is_used_again_is_another_one(tmp_path: Path) -> None:
    events = [
        task(1, 1, "EVENT_RECORD_7", ts=0, dur=10),
        task(1, 2, "EVENT_RECORD_7", ts=50, dur=10),
        task(2, 3, "EVENT_WAIT_7", ts=0, dur=1),
        task(2, 4, "EVENT_WAIT_7", ts=20, dur=1),
    ]
    ends = [e["ts"] + e["dur"] for e in read(align_trace_json(written(tmp_path, events), None))]
    assert ends == [10, 60, 10, 60]


def test_tasks_that_wait_for_each_other_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events = [
        task(1, 1, "EVENT_WAIT_1"),
        task(1, 2, "EVENT_RECORD_2"),
        task(2, 3, "EVENT_WAIT_2"),
        task(2, 4, "EVENT_RECORD_1"),
    ]
    with pytest.raises(SystemExit):
        align_trace_json(written(tmp_path, events), None)
    assert "EVENT_WAIT_1 of stream1, EVENT_WAIT_2 of stream2" in capsys.readouterr().out


@pytest.mark.parametrize("main", [filter_main, deadlock_main, align_main])
@pytest.mark.parametrize("content", [None, "no json", '{"events": []}'])
def test_what_is_no_trace_ends_with_status_1(main: Any, content: str | None, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(SystemExit) as caught:
        main([str(path)])
    assert caught.value.code == 1


@pytest.mark.parametrize(
    "package", ["torchair.tools.gegraph_check", slow("npugraph_ex.tools.aclgraph_check")]
)
def test_they_are_commands(package: str, tmp_path: Path) -> None:
    path = written(tmp_path, [talk(1, 1), talk(2, 2)])
    output = tmp_path / "out.json"
    quiet = ["-W", "error::RuntimeWarning"]  # of a module that is run and imported
    command = [*quiet, "-m", f"{package}.deadlock_check", str(path), "-o", str(output)]
    run = python([*command, "--merge-gap", "1"])
    assert run.returncode == 0, run.stderr
    assert "pairs of tasks that may starve each other: 1" in run.stdout
    assert output.exists()
    output.unlink()
    deadlock_main([str(path), "-o", str(output), "--aivec-total", "60"])
    assert not output.exists()
