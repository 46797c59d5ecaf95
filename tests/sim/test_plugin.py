"""`import torch_npu`, `python -m torchair sim` and TORCHAIR_SIM_NPU: each in a process of its own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from textwrap import dedent

import pytest

from tests.support.process import ROOT, python

PACKAGE = ROOT / "packages/torch_npu_sim"
BOTH = f"{ROOT}:{PACKAGE}"


def run_code(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return python(["-c", dedent(code)], **environment)


def test_the_distribution_brings_the_device() -> None:
    done = run_code(
        """
        import torch_npu, torch
        assert torch_npu.npu is torch.npu and torch_npu.npugraph_ex is torch.npu.npugraph_ex
        assert torch_npu.__version__.startswith(torch.__version__.split("+")[0])
        assert torch.ones(2).npu().device.type == "npu" and torch.npu.device_count() == 3
        assert torch_npu.npu_rms_norm is torch.ops.npu.npu_rms_norm
        import torch_npu.npu.amp, torch.npu.amp, torch_npu.dynamo.torchair, torchair
        assert torch_npu.npu.amp is torch.npu.amp and torch_npu.dynamo.torchair is torchair
        import torchair.core.registries.vendor_plugin
        assert torchair.core.registries.vendor_plugin.real_plugin() is None
        """,
        PYTHONPATH=BOTH,
        TORCHAIR_SIM_DEVICES="3",
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("first", [True, False], ids=["first", "behind"])
def test_the_vendors_is_never_shadowed(first: bool, tmp_path: Path) -> None:
    vendor = tmp_path / "torch_npu"
    vendor.mkdir()
    (vendor / "__init__.py").write_text("real = True\n")
    paths = f"{tmp_path}:{BOTH}" if first else f"{BOTH}:{tmp_path}"
    code = """
        try:
            import torch_npu
        except ImportError as error:
            print("refused", error)
        else:
            print("real" if torch_npu.real else "")
        import torchair.sim
        try:
            torchair.sim.install()
        except ImportError as error:
            print("refused", error)
        """
    done = run_code(code, PYTHONPATH=paths)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len([line for line in lines if line.startswith("refused")]) == (1 if first else 2)
    assert str(vendor) in done.stdout
    assert not first or lines[0] == "real"


def test_one_that_was_written_over_is_found(tmp_path: Path) -> None:
    """Both in one folder: the files are ours, but the vendor's is installed by its own account."""
    facts = tmp_path / "torch_npu-2.13.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: torch_npu\nVersion: 2.13.0\n")
    done = run_code("import torch_npu", PYTHONPATH=f"{BOTH}:{tmp_path}")
    assert done.returncode == 1
    assert "PluginTaken" in done.stderr
    assert str(tmp_path) in done.stderr


def test_the_environment_brings_the_device() -> None:
    code = "import torchair, torch, sys; print(torch.npu.device_count(), 'torch_npu' in sys.modules)"
    done = run_code(code, TORCHAIR_SIM_NPU="1", TORCHAIR_SIM_DEVICES="2", TORCHAIR_SIM_MEMORY="1000000")
    assert done.stdout.split() == ["2", "True"], done.stderr
    assert run_code("import torchair, torch; assert not hasattr(torch, 'npu')").returncode == 0
    done = run_code("import torchair", TORCHAIR_SIM_NPU="1", TORCHAIR_SIM_DEVICES="many")
    assert "TORCHAIR_SIM_DEVICES must be a number" in done.stderr
    assert "must be 0 or 1" in run_code("import torchair", TORCHAIR_SIM_NPU="perhaps").stderr


def test_torch_brings_the_device_before_torchair_is_imported() -> None:
    """Scripts begin with `import torch` and `import torch_npu`: what torch calls is what installs it."""
    call = "from torchair_autoload import autoload; autoload(); import sys\n"
    done = run_code(f"{call}import torch_npu; print(torch_npu.npu.device_count())", TORCHAIR_SIM_NPU="1")
    assert done.stdout.split() == ["8"], done.stderr
    done = run_code(f"{call}print('torchair' in sys.modules)", TORCHAIR_SIM_NPU="0")
    assert done.stdout.split() == ["False"], done.stderr


@pytest.mark.full
def test_torch_finds_what_to_call(tmp_path: Path) -> None:
    """Torch reads the entry points of what is installed: those of this project's pyproject.toml."""
    declared = re.search(r'"torch.backends"\]\n(\w+ = )"(.+)"', (ROOT / "pyproject.toml").read_text())
    assert declared is not None
    facts = tmp_path / "torchair-0.1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: torchair\nVersion: 0.1.0\n")
    (facts / "entry_points.txt").write_text("[torch.backends]\n" + "".join(declared.groups()))
    done = subprocess.run(
        [sys.executable, "-c", "import torch; import torch_npu; print(torch_npu.npu.device_count())"],
        env={**os.environ, "TORCHAIR_SIM_NPU": "1", "PYTHONPATH": f"{tmp_path}:{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["8"], done.stderr


@pytest.mark.full
def test_installed_it_is_loaded_with_torch_where_asked(tmp_path: Path) -> None:
    """The wheel, in an environment of its own that sees this one's packages."""
    place = tmp_path / "env"
    venv.create(place, symlinks=True, with_pip=False)
    packages = next(place.glob("lib/python*/site-packages"))
    here = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "others.pth").write_text("\n".join([*here, str(ROOT)]))
    install = [
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--target",
        str(packages),
    ]
    source = shutil.copytree(PACKAGE, tmp_path / "source")  # setuptools builds where the sources are
    subprocess.run([sys.executable, *install, str(source)], check=True)
    code = "import torch, sys; print(hasattr(torch, 'npu'), 'torchair' in sys.modules)"
    for switch, want in (("0", ["False", "False"]), ("1", ["True", "True"])):
        command = [str(place / "bin/python"), "-c", code]
        done = subprocess.run(
            command,
            env={**os.environ, "TORCHAIR_SIM_NPU": switch, "PYTHONPATH": ""},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout.split() == want, done.stderr


def sim(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return python(["-m", "torchair", "sim", *arguments], folder)


def test_a_script_runs_as_python_runs_it(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner/neighbour.py").write_text("VALUE = 5\n")
    (tmp_path / "inner/script.py").write_text(
        dedent(
            """
            import sys, pickle, neighbour, torch_npu, torch
            class Kept: pass
            assert __name__ == "__main__" and sys.modules["__main__"].Kept is Kept
            assert isinstance(pickle.loads(pickle.dumps(Kept())), Kept)
            print(sys.argv, __file__, sys.path[0], torch.npu.device_count(), torch.npu.mem_get_info()[1])
            sys.exit(neighbour.VALUE)
            """
        )
    )
    done = sim("--devices", "2", "--memory", "4096", "inner/script.py", "-x", "--devices", folder=tmp_path)
    assert done.returncode == 5, done.stderr
    assert (
        done.stdout.strip()
        == f"['inner/script.py', '-x', '--devices'] inner/script.py {tmp_path}/inner 2 4096"
    )


def test_a_module_runs_as_python_runs_it(tmp_path: Path) -> None:
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack/__init__.py").write_text("")
    (tmp_path / "pack/__main__.py").write_text(
        "import sys, torch_npu\nfrom pack import __path__\n"
        "print(__name__, __package__, __spec__.name, sys.argv[1:])\n"
    )
    done = sim("-m", "pack", "-m", "x", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "__main__ pack pack.__main__ ['-m', 'x']"


def test_errors_are_those_of_the_script(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("def f():\n    return 1 / 0\n\n\nf()\n")
    done = sim("script.py", folder=tmp_path)
    assert done.returncode == 1
    first, *_, last = done.stderr.strip().splitlines()
    assert first == "Traceback (most recent call last):"
    assert last == "ZeroDivisionError: division by zero"
    assert done.stderr.count('  File "') == 2
    (tmp_path / "bad.py").write_text("def f(:\n")
    done = sim("bad.py", folder=tmp_path)
    assert (done.returncode, "SyntaxError" in done.stderr) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["nowhere.py"], "cannot open file 'nowhere.py'"),
        (["-m", "no.such.module"], "no module 'no.such.module'"),
        ([], "no script to run"),
        (["--devices", "0", "script.py"], "devices must be a number from 1"),
        (["--memory", "-5", "script.py"], "memory must be a number of bytes"),
    ],
    ids=["script", "module", "nothing", "devices", "memory"],
)
def test_sim_command_reports_error_without_traceback(arguments: list[str], text: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("")
    done = sim(*arguments, folder=tmp_path)
    assert done.returncode == 2
    assert text in done.stderr
    assert "Traceback" not in done.stderr


def test_processes_that_a_script_starts_have_the_device(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import subprocess, sys, torch_npu\n"
        "code = 'import torch_npu, torch; print(torch.npu.device_count())'\n"
        "subprocess.run([sys.executable, '-c', code], check=True)\n"
    )
    done = sim("--devices", "2", "script.py", folder=tmp_path)
    assert done.stdout.split() == ["2"], done.stderr
