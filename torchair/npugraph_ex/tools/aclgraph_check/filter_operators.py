"""The command of `torchair.tools.gegraph_check.filter_operators`, for traces of recorded graphs."""

import sys

from torchair.tools.gegraph_check.filter_operators import filter_comm_ops, main

__all__ = ["filter_comm_ops", "main"]

if __name__ == "__main__":
    sys.exit(main())
