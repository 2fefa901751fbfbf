"""Attaches laggard to a training process that knows nothing of it.

Runs at the start of every interpreter of the environment, so it is small, does nothing
unless LAGGARD_ENABLE asks for it, and never raises.
"""

import os
import sys


class _HookLoader:
    """Runs a callback after a module was executed, and gives the module its loader back."""

    def __init__(self, loader, callback):
        self._loader, self._callback = loader, callback

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()

    def __getattr__(self, name):
        return getattr(self._loader, name)


class _Finder:
    """Waits for a module to be imported. Looking for its spec does not trigger it."""

    def __init__(self, name, callback):
        self._name, self._callback, self._busy = name, callback, False

    def find_spec(self, name, path=None, target=None):
        if name != self._name or self._busy:
            return None
        self._busy = True
        try:
            for finder in sys.meta_path:
                find_spec = getattr(finder, "find_spec", None)
                spec = find_spec(name, path, target) if find_spec and finder is not self else None
                if spec is not None:
                    break
            else:
                return None
        finally:
            self._busy = False
        if hasattr(spec.loader, "exec_module"):
            spec.loader = _HookLoader(spec.loader, self._callback)
        return spec


def when_imported(name, callback):
    """Calls ``callback()`` once module ``name`` is imported, at once if it already is."""
    if name in sys.modules:
        callback()
    else:
        sys.meta_path.insert(0, _Finder(name, callback))


def _attach():
    try:
        import laggard  # noqa: F401  importing attaches
    except Exception as error:
        print(f"laggard: not attached: {error!r}", file=sys.stderr)


def main():
    """Entry point of the `.pth` and `.start` files."""
    if os.environ.get("LAGGARD_ENABLE", "0") != "0":
        when_imported("torch", _attach)
