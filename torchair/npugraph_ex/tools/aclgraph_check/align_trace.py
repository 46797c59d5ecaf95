"""The command of `torchair.tools.gegraph_check.align_trace`, for traces of recorded graphs."""

import sys

from torchair.tools.gegraph_check.align_trace import align_trace_json, main

__all__ = ["align_trace_json", "main"]

if __name__ == "__main__":
    sys.exit(main())
