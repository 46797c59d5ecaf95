"""The directory that caches compiled code between processes."""

from __future__ import annotations

import os
from pathlib import Path

from torchair.core.errors import NotPossible
from torchair.core.torch_private.compilers.inductor import inductor_cache_dir

NATIVE = "torchair_native"


def cache_folder() -> Path:
    """Return torchair's directory below Inductor's cache. Only the user can access it, because its files are
    loaded as code.
    """
    path = Path(inductor_cache_dir()) / NATIVE
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = path.stat()
    if status.st_uid != os.getuid():
        raise NotPossible(
            f"{path} belongs to another user, and its files are loaded as code",
            next="set TORCHINDUCTOR_CACHE_DIR to a directory of your own",
        )
    if status.st_mode & 0o077:
        path.chmod(0o700)
    return path
