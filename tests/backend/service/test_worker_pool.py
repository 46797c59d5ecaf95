"""The process that compiles: once for many orders, and never anybody's end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from torchair.backend.service import worker_pool
from torchair.backend.service.request import CompileRequest, CompileResult, tensor_metadata_of
from torchair.backend.service.worker_pool import ProcessEnv, WorkerPool, compile_in_worker
from torchair.codegen import CodegenOptions
from torchair.core.torch_private.fake.fake_tensors import dump_graph, make_fx


def order(factor: int = 2, *, kinds: tuple[str, ...] = ("eager",)) -> CompileRequest:
    gm = make_fx(lambda x: [x * factor])(torch.ones(3))
    for node in gm.graph.nodes:
        node.meta = {}
    return CompileRequest(dump_graph(gm), tensor_metadata_of([torch.ones(3)]), CodegenOptions(), kinds)


@pytest.fixture(scope="module")
def shops() -> Iterator[WorkerPool]:
    """For all tests: it takes seconds to start one."""
    with pytest.MonkeyPatch.context() as patch:
        made = WorkerPool()
        patch.setattr(worker_pool, "WORKSHOPS", made)
        yield made
        made.close()


def processes(shops: WorkerPool) -> list[int]:
    return [shop._process.pid for shop in shops._by_place.values()]


def filled(tmp_path: Path, factor: int = 2, given: CompileRequest | None = None) -> str:
    """What went wrong; nothing where the program does what it should."""
    folder = tmp_path / str(factor)
    folder.mkdir(exist_ok=True)
    given = order(factor) if given is None else given
    made, why = compile_in_worker(given, folder)
    if made is not None:
        assert isinstance(made, CompileResult)
        assert given.load(made)([torch.ones(3)])[0].tolist() == [float(factor)] * 3
    return why


def test_one_process_compiles_all(shops: WorkerPool, tmp_path: Path) -> None:
    assert filled(tmp_path, 2) == ""
    first = processes(shops)
    assert filled(tmp_path, 3) == ""
    assert processes(shops) == first


def test_orders_of_several_threads(shops: WorkerPool, tmp_path: Path) -> None:
    assert filled(tmp_path, 2) == ""
    before, said = processes(shops), dict[int, str]()
    orders = {factor: order(factor) for factor in range(2, 8)}  # tracing is for one thread

    def fill(factor: int) -> None:
        said[factor] = filled(tmp_path, factor, orders[factor])

    threads = [threading.Thread(target=fill, args=[factor]) for factor in orders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert said == dict.fromkeys(orders, "")
    assert processes(shops) == before


@pytest.mark.full
def test_another_takes_the_place_of_one_that_ended(shops: WorkerPool, tmp_path: Path) -> None:
    assert filled(tmp_path, 2) == ""
    before = processes(shops)
    for process in before:
        os.killpg(process, signal.SIGKILL)
    assert filled(tmp_path, 3) == ""
    assert not set(before) & set(processes(shops))


def test_one_that_ends_with_the_order_in_its_hands(
    shops: WorkerPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It seemed to be there, and took the order."""
    assert filled(tmp_path, 2) == ""
    shop = shops._by_place[ProcessEnv.of(order())]
    os.killpg(shop._process.pid, signal.SIGSTOP)
    thread = threading.Timer(1, os.killpg, (shop._process.pid, signal.SIGKILL))
    thread.start()
    assert filled(tmp_path, 3) == ""
    thread.join()
    assert shop._process.poll() == -signal.SIGKILL


@pytest.mark.full
def test_what_takes_too_long_ends_with_its_compilers(
    shops: WorkerPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler, running = tmp_path / "compiler", tmp_path / "running"
    compiler.write_text(
        f'#!/bin/sh\nif [ -e {running} ]; then echo $$ >> {running}; exec sleep 1234567; fi\nexec g++ "$@"\n'
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    assert filled(tmp_path, 2) == ""
    running.touch()
    folder = tmp_path / "order"
    folder.mkdir()
    made, why = compile_in_worker(order(kinds=("inductor",)), folder, 5)
    assert made is None
    assert why == "it took more than 5 s"
    compilers = running.read_text().split()
    assert compilers, "the order was being compiled"
    end = time.monotonic() + 30
    while any(Path(f"/proc/{pid}/cmdline").exists() for pid in compilers) and time.monotonic() < end:
        time.sleep(0.1)
    assert not any(Path(f"/proc/{pid}/cmdline").exists() for pid in compilers)


@pytest.mark.full
def test_many_open_files_and_deaf_parents(tmp_path: Path) -> None:
    """What a server may do: open more files than `select` takes, and not ask how its children end."""
    code = (
        "import resource, signal, sys\n"
        "soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))\n"
        "kept = [open('/dev/null') for _ in range(1100)]\n"
        "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        "from pathlib import Path\n"
        "from tests.backend.service.test_worker_pool import filled\n"
        "print(filled(Path(sys.argv[1]), 2) == '')\n"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "True", done.stderr


def test_why_it_failed(shops: WorkerPool, tmp_path: Path) -> None:
    made, why = compile_in_worker(order(kinds=("nonsense",)), tmp_path)
    assert made is None
    assert "nonsense" in why
    assert "Traceback" in (tmp_path / "compiler.log").read_text()
    assert filled(tmp_path, 3) == "", "the next order is none the worse for it"


@pytest.mark.full
def test_another_environment_is_another_process(
    shops: WorkerPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert filled(tmp_path, 2) == ""
    before = len(processes(shops))
    monkeypatch.setenv("TORCHAIR_TRIED", "1")
    assert filled(tmp_path, 3) == ""
    assert len(processes(shops)) > before


def test_no_process_can_be_started(
    shops: WorkerPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that ends at once, say: an error with a reason, and no waiting."""
    monkeypatch.setenv("TORCHAIR_TRIED", "2")
    monkeypatch.setattr(worker_pool, "WORKER", "raise SystemExit('there is no memory')")
    made, why = compile_in_worker(order(), tmp_path)
    assert (made, why) == (None, "there is no memory")


@pytest.mark.full
def test_a_child_of_this_process_has_its_own(shops: WorkerPool, tmp_path: Path) -> None:
    assert filled(tmp_path, 2) == ""
    before = processes(shops)
    child = os.fork()
    if child == 0:
        is_right = filled(tmp_path, 3) == "" and processes(worker_pool.WORKSHOPS) != before
        os._exit(0 if is_right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert filled(tmp_path, 4) == ""
    assert processes(shops) == before


@pytest.mark.full
def test_it_ends_when_it_has_nothing_to_do(
    shops: WorkerPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head, _, _ = worker_pool.WORKER.partition("import runpy")
    quick = "import torchair.backend.service.worker_main as worker; worker.IDLE_SECONDS = 0.5; worker.main()"
    monkeypatch.setenv("TORCHAIR_TRIED", "3")
    monkeypatch.setattr(worker_pool, "WORKER", head + quick)
    assert filled(tmp_path, 2) == ""
    shop = shops._by_place[ProcessEnv.of(order())]
    end = time.monotonic() + 30
    while shop.is_there() and time.monotonic() < end:
        time.sleep(0.1)
    assert shop._process.poll() == 0
    assert filled(tmp_path, 3) == "", "and then there is another"
