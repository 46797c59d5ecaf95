"""The loggers of torchair: line format, the level EVENT, `event`, `warning_once`, and a progress line."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torchair.core.environment import is_set, not_read, text_of
from torchair.core.lazy_module import LazyModule

if TYPE_CHECKING:
    from rich import console as rich_console
    from rich import progress as rich_progress
else:
    rich_console, rich_progress = LazyModule("rich.console"), LazyModule("rich.progress")

EVENT_LEVEL = 35
LONG = 5.0
"""Seconds after which slow work prints a progress line."""
logging.addLevelName(EVENT_LEVEL, "EVENT")

# Values of TNG_LOG_LEVEL.
LEVELS = {"0": logging.DEBUG, "1": logging.INFO, "2": logging.WARNING, "3": logging.ERROR, "4": EVENT_LEVEL}


class AirLogger(logging.Logger):
    """A logger with the level EVENT (between WARNING and ERROR) and with warnings that are logged only
    once.
    """

    def __init__(self, name: str, level: int = logging.NOTSET) -> None:
        super().__init__(name, level)
        self._logged: set[str] = set()

    def event(self, msg: str, *args: Any, **kwargs: Any) -> None:
        """Log at level EVENT: milestones with their times."""
        if self.isEnabledFor(EVENT_LEVEL):
            kwargs.setdefault("stacklevel", 2)
            self._log(EVENT_LEVEL, msg, args, **kwargs)

    def is_new(self, text: str) -> bool:
        """Return whether this text is new in this process, and remember it."""
        is_new = text not in self._logged
        self._logged.add(text)
        return is_new

    def forget(self) -> None:
        """Forget all texts."""
        self._logged.clear()

    def warning_once(self, msg: str, *args: Any) -> None:
        """Log a warning, but each text only once in a process."""
        text = msg % args if args else msg
        if self.isEnabledFor(logging.WARNING) and self.is_new(text):
            self._log(logging.WARNING, text, (), stacklevel=2)


class LineFormat(logging.Formatter):
    """Formats lines as `[LEVEL] TORCHAIR(pid,python):YYYY-mm-dd HH:MM:SS.mmm.uuu [file.py:line]tid
    message`.
    """

    def __init__(self, product: str) -> None:
        super().__init__()
        self._head = f"{product}({os.getpid()},{os.path.basename(sys.executable)})"

    def format(self, record: logging.LogRecord) -> str:
        micros = int(record.created * 1_000_000) % 1_000_000
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created))
        stamp = f"{when}.{micros // 1000:03d}.{micros % 1000:03d}"
        text = record.getMessage()
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        where = f"[{record.filename}:{record.lineno}]{threading.get_native_id()}"
        return f"[{record.levelname}] {self._head}:{stamp} {where} {text}"


class _Stdout(logging.StreamHandler[Any]):
    """Writes to the current `sys.stdout`, so that redirected output and test captures see the lines."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> Any:  # type: ignore[override]
        return sys.stdout


def level_by_environment() -> int:
    """Return the level of TNG_LOG_LEVEL; if it is unset, DEBUG under TORCH_COMPILE_DEBUG=1 and otherwise
    ERROR.
    """
    if not is_set("TNG_LOG_LEVEL") and text_of("TORCH_COMPILE_DEBUG") == "1":
        return logging.DEBUG
    word = text_of("TNG_LOG_LEVEL")
    if word not in LEVELS:
        text = f"TNG_LOG_LEVEL must be one of {', '.join(LEVELS)}, got {word!r}: only errors are logged"
        warnings.warn(text, UserWarning, stacklevel=2)
    return LEVELS.get(word, logging.ERROR)


def make_logger(name: str) -> AirLogger:
    """Return the logger of one product name, with a handler for stdout. A level that was already set for the
    name remains: torch sets levels for names in TORCH_LOGS.
    """
    made = AirLogger(name, logging.getLogger(name).level or LEVEL)
    handler = _Stdout()
    handler.setFormatter(LineFormat(name.upper()))
    made.addHandler(handler)
    made.parent = logging.getLogger()
    made.propagate = False
    logging.Logger.manager.loggerDict[name] = made
    return made


@contextlib.contextmanager
def progress(text: str, began: float | None = None) -> Iterator[None]:
    """Show a line with a running clock while the block runs, but only on a terminal."""
    if sys.stderr is None or sys.stderr.closed or not sys.stderr.isatty():  # a service may have no stderr
        yield
        return
    columns = (
        rich_progress.SpinnerColumn(),
        rich_progress.TextColumn("{task.description}"),
        rich_progress.TimeElapsedColumn(),
    )
    console = rich_console.Console(stderr=True)
    with rich_progress.Progress(*columns, console=console, transient=True) as shown:
        task = shown.add_task(text, total=None)
        if began is not None:
            shown.tasks[task].start_time = began
        yield


@contextlib.contextmanager
def warn_if_slow(text: str, hint: str = "") -> Iterator[None]:
    """Print a progress line if the block takes longer than `LONG` seconds, regardless of log level: a line
    with a clock on a terminal, one line elsewhere. The block runs even if nothing can be printed.
    """
    done = threading.Event()
    reporter = threading.Thread(
        target=_report_progress, args=(done, text, hint, time.monotonic()), daemon=True
    )
    with contextlib.suppress(RuntimeError):  # no thread can start: too many, or Python is exiting
        reporter.start()
    try:
        yield
    finally:
        done.set()
        if reporter.ident is not None:
            reporter.join()  # clear the line before other output


def _report_progress(done: threading.Event, text: str, hint: str, began: float) -> None:
    if done.wait(LONG) or sys.stderr is None or sys.stderr.closed:  # a service may have no stderr
        return
    if sys.stderr.isatty():
        with progress(f"{text} ({hint})" if hint else text, began):
            done.wait()
    else:
        since = time.strftime("%H:%M:%S", time.localtime(time.time() - (time.monotonic() - began)))
        hint = f"; {hint}" if hint else ""
        print(f"torchair: {text}, since {since}{hint}", file=sys.stderr, flush=True)


LEVEL = level_by_environment()
logger = make_logger("torchair")
capture_logger = make_logger("npugraph_ex")
"""Logger of recording and replaying, for all names of capture mode."""

for _name in not_read():
    logger.info("%s is set, but torchair ignores it", _name)
