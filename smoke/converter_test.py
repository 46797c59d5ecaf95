"""`python3 smoke/converter_test.py [PREFIX]`: run the declared cases of converters, built-in and your own.

The same as `python -m torchair.tools.converter_test`; `--load my_module` imports your converters first.
"""

import os
import sys

sys.path[:0] = [os.path.dirname(os.path.dirname(os.path.abspath(__file__))), os.getcwd()]

from torchair.tools.converter_test import main  # noqa: E402 - found by the path above

if __name__ == "__main__":
    sys.exit(main())
