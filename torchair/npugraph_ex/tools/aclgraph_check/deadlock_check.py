"""The command of `torchair.tools.gegraph_check.deadlock_check`, for traces of recorded graphs."""

import sys

from torchair.tools.gegraph_check.deadlock_check import deadlock_check, main

__all__ = ["deadlock_check", "main"]

if __name__ == "__main__":
    sys.exit(main())
