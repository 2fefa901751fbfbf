"""Attaches laggard where its wheel is not installed: stands first on PYTHONPATH.

A script's own ``sitecustomize`` comes to its right, and what is installed beside the script
goes before what stands here.
"""

import os
import sys

_here = os.path.dirname(os.path.abspath(__file__))
sys.path = [entry for entry in sys.path if os.path.abspath(entry) != _here]
_this = sys.modules.pop("sitecustomize", None)
try:
    import sitecustomize  # noqa: F401  the one this one hides
except ImportError:
    sys.modules["sitecustomize"] = _this
sys.path.append(_here)
try:
    import laggard_autoload

    laggard_autoload.main()
except Exception as error:
    print(f"laggard: not attached: {error!r}", file=sys.stderr)
