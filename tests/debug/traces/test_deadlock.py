"""The deadlock analyser on small traces: who competes, what orders, what is written and printed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchair.debug.traces.deadlock import (
    check_trace,
    clocks_of,
    conflicts_of,
    keep_relevant,
    mark,
    merge_streams,
    tasks_of,
)

CORES = 48


class Trace:
    """Tasks in the order they are added; ids count per trace."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def task(self, stream: int, name: str, **args: Any) -> Trace:
        args = {"Task Id": len(self.events), **{key.replace("_", " "): value for key, value in args.items()}}
        event = {"name": name, "tid": f"stream{stream}", "ph": "X", "ts": 0, "dur": 1, "args": args}
        self.events.append(event)
        return self

    def talk(self, stream: int, name: str = "aiv_all_reduce", blocks: int = 30, **args: Any) -> Trace:
        return self.task(
            stream, name, **{"Task_Type": "KERNEL_AIVEC", "Numblocks": blocks, "Schem_Mode": 1, **args}
        )

    def conflicts(self) -> list[tuple[str, str]]:
        found = conflicts_of(keep_relevant(merge_streams(self.events)), CORES)
        return [(conflict.first.name, conflict.second.name) for conflict in found]


def test_concurrent_and_too_many_cores() -> None:
    assert Trace().talk(1, "aiv_a").talk(2, "aiv_b").conflicts() == [("aiv_a", "aiv_b")]


@pytest.mark.parametrize(("blocks", "is_conflict"), [(24, False), (25, True)])
def test_exactly_all_cores_are_enough(blocks: int, is_conflict: bool) -> None:
    assert bool(Trace().talk(1, blocks=24).talk(2, blocks=blocks).conflicts()) is is_conflict


def test_one_stream_is_an_order() -> None:
    assert Trace().talk(1).talk(1).conflicts() == []


ORDERS = [("EVENT_RECORD_{}", "EVENT_WAIT_{}"), ("MEM_WRITE_VALUE_{}", "MEM_WAIT_VALUE_{}")]


@pytest.mark.parametrize(("give", "take"), ORDERS)
def test_ordered_through_a_third_stream(give: str, take: str) -> None:
    # The waiting stream stands first in the file: one sweep over the trace is not enough.
    trace = Trace().task(1, take.format(8)).talk(1, "aiv_late")
    trace.task(2, take.format(7)).task(2, give.format(8))
    trace.talk(3, "aiv_early").task(3, give.format(7))
    assert trace.conflicts() == []


def test_a_record_before_the_kernel_orders_nothing() -> None:
    trace = Trace().task(1, "EVENT_RECORD_7").talk(1, "aiv_a").task(2, "EVENT_WAIT_7").talk(2, "aiv_b")
    assert trace.conflicts() == [("aiv_a", "aiv_b")]


def test_handles_must_match_in_number_and_kind() -> None:
    trace = Trace().talk(1, "aiv_a").task(1, "EVENT_RECORD_7").task(1, "MEM_WRITE_VALUE_8")
    trace.task(2, "EVENT_WAIT_77").task(2, "EVENT_WAIT_8").talk(2, "aiv_b")
    assert trace.conflicts() == [("aiv_a", "aiv_b")]


def test_task_ids_order_a_stream_not_the_file() -> None:
    trace = Trace()
    trace.task(1, "EVENT_RECORD_7", **{"Task Id": 5}).talk(1, "aiv_a", **{"Task Id": 4})
    trace.task(2, "EVENT_WAIT_7").talk(2, "aiv_b")
    assert trace.conflicts() == []


def test_virtual_streams_continue_their_host() -> None:
    trace = Trace().talk(1, "aiv_a").task(1, "STREAM_ACTIVE", Task_Type="STREAM_ACTIVE", Active_Stream_Id=2)
    trace.task(2, "STREAM_ACTIVE", Task_Type="STREAM_ACTIVE", Active_Stream_Id="3").talk(3, "aiv_b")
    assert trace.conflicts() == []
    assert {event["tid"] for event in merge_streams(trace.events)} == {"stream1"}
    assert [event["name"] for event in merge_streams(trace.task(1, "MatMul").events)] == [
        "aiv_a", "STREAM_ACTIVE", "MatMul", "STREAM_ACTIVE", "aiv_b",
    ]  # fmt: skip


def test_streams_that_start_each_other_are_left_alone() -> None:
    trace = Trace().task(1, "STREAM_ACTIVE_0", Active_Stream_Id=2)
    trace.task(2, "STREAM_ACTIVE_1", Active_Stream_Id=1)
    assert [event["tid"] for event in merge_streams(trace.events)] == ["stream1", "stream1"]


@pytest.mark.parametrize(
    ("kind", "ratio", "cores"),
    [
        ("KERNEL_AIVEC", 0, 20),
        ("KERNEL_MIX_AIV", 0, 20),
        ("KERNEL_MIX_AIC", 0, 0),
        ("KERNEL_MIX_AIC", 2, 40),
        ("KERNEL_MIX_AIC", "1", 40),
        ("KERNEL_AICORE", 2, 0),
        ("anything", 2, 0),
    ],
)
def test_vector_cores_of_a_task(kind: str, ratio: Any, cores: int) -> None:
    trace = Trace().task(1, "aiv_a", Task_Type=kind, Numblocks="20", Task_Ration=ratio)
    assert [task.cores for task in tasks_of(trace.events)] == [cores]


@pytest.mark.parametrize(
    ("name", "kept", "competes"),
    [
        ("aiv_all_reduce", True, True),
        ("AIV_ALL_REDUCE", True, True),
        ("hccl_aivreduce", True, False),
        ("MoeDistributeDispatch", True, True),
        ("MoeDistributeCombine", True, True),
        ("my_aiv_kernel", False, True),
        ("MatMul", False, False),
        ("EVENT_RESET_3", False, False),
        ("mem_wait_value_3", True, False),
    ],
)
def test_deadlock_keeps_tasks_by_name(name: str, kept: bool, competes: bool) -> None:
    events = Trace().talk(1, name).events
    assert bool(keep_relevant(events)) is kept
    assert tasks_of(events)[0].competes is competes


def test_risky_tasks_are_renamed_and_stretched() -> None:
    events = Trace().talk(1, "aiv_a").talk(2, "aiv_b").talk(3, "aiv_c", blocks=1).events
    marked = mark(events, conflicts_of(events, CORES))
    assert [(event["name"], event["dur"]) for event in marked] == [
        ("dead_lock_aiv_a", 49.5),
        ("dead_lock_aiv_b", 49.5),
        ("aiv_c", 1),
    ]


def written(folder: Path, content: Any) -> Path:
    path = folder / "graph_1.json"
    path.write_text(json.dumps(content))
    return path


def test_files_and_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = Trace().talk(1, "aiv_a").talk(2, "aiv_b", blocks=20).task(1, "MatMul")
    path = written(tmp_path, {"traceEvents": trace.events, "displayTimeUnit": "ms"})
    (conflict,) = check_trace(path, CORES)
    assert conflict.row == ("stream1", "0", "aiv_a", "30", "stream2", "1", "aiv_b", "20", "50", "48")
    printed = capsys.readouterr().out
    assert all(cell in printed for cell in conflict.row)
    kept = json.loads((tmp_path / "graph_1_filtered.json").read_text())
    assert [event["name"] for event in kept["traceEvents"]] == ["aiv_a", "aiv_b"]
    assert kept["displayTimeUnit"] == "ms"
    found = json.loads((tmp_path / "graph_1_filtered_deadlock_check.json").read_text())
    assert [event["name"] for event in found["traceEvents"]] == ["dead_lock_aiv_a", "dead_lock_aiv_b"]


def test_without_a_conflict_there_is_only_a_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, Trace().talk(1).talk(2, blocks=1).events)
    assert check_trace(path, CORES) == []
    assert capsys.readouterr().out == "no deadlock found in graph_1_filtered.json\n"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["graph_1.json", "graph_1_filtered.json"]


def test_another_mode_is_reported_and_never_competes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = Trace().talk(1, "aiv_a", Schem_Mode=0).talk(2, "aiv_b").task(2, "EVENT_RECORD_1")
    assert check_trace(written(tmp_path, trace.events), CORES) == []
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "stream1 task 0 aiv_a: not checked, because its Schem Mode is not 1"
    assert len(printed) == 2


@pytest.mark.parametrize("text", [None, "", "{", "3", '{"traceEvents": 3}', "\x00\xff"])
def test_a_broken_file_is_refused_and_nothing_is_written(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "graph_1.json"
    if text is not None:
        path.write_text(text, encoding="latin-1")
    with pytest.raises((OSError, ValueError)):
        check_trace(path, CORES)
    assert not list(tmp_path.glob("*_filtered*"))


def test_odd_events_are_passed_over(tmp_path: Path) -> None:
    odd = [3, None, {}, {"name": 3, "tid": 1}, {"name": "aiv_x", "tid": "stream9", "args": "none"}]
    odd += Trace().talk(1, "aiv_a").talk(2, "aiv_b", blocks="30.0").events  # type: ignore[arg-type]
    assert [c.first.name for c in check_trace(written(tmp_path, odd), CORES)] == ["aiv_a"]


@settings(max_examples=200)
@given(st.lists(st.tuples(st.integers(1, 4), st.sampled_from("KRW"), st.integers(0, 3)), max_size=14))
def test_clocks_say_what_paths_say(tasks: list[tuple[int, str, int]]) -> None:
    """One task is before another exactly where a path of streams and events leads from one to the other."""
    kinds = {"K": "aiv_{}", "R": "EVENT_RECORD_{}", "W": "EVENT_WAIT_{}"}
    trace = Trace()
    for stream, kind, handle in tasks:
        trace.task(stream, kinds[kind].format(handle))
    found = tasks_of(merge_streams(trace.events))
    after = {
        first: [
            second
            for second in found
            if (first.stream == second.stream and first.place + 1 == second.place)
            or (
                first.name.startswith("EVENT_RECORD")
                and second.name == first.name.replace("RECORD", "WAIT")
                and (first.stream != second.stream or first.place < second.place)
            )
        ]
        for first in found
    }
    clocks = clocks_of(found)
    for start in found:
        reached, open_ends = {start}, [start]
        while open_ends:
            fresh = [task for task in after[open_ends.pop()] if task not in reached]
            reached |= set(fresh)
            open_ends += fresh
        said = {task for task in found if clocks[task].get(start.stream, 0) >= start.place}
        assert said == reached
