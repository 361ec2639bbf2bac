"""The connector's classes with settings in the name of their module.

All that reaches every rank of the runtime is the name of a module and of two classes. So settings
that are given in code travel in that name: `mooncake_trtllm.configured.MC_KEY_EPOCH=5` is a module
whose classes have MC_KEY_EPOCH set to 5. `name_of` makes such names; importing one needs this
package alone, in whatever process.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import urllib.parse
from collections.abc import Mapping
from types import ModuleType
from typing import Any

__all__ = ["name_of"]

_PREFIX = f"{__name__}."


def name_of(settings: Mapping[str, str]) -> str:
    """Return the name of the module whose classes have these settings."""
    return _PREFIX + urllib.parse.urlencode(settings).replace(".", "%2E")


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, fullname: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        if not fullname.startswith(_PREFIX):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, origin="settings")

    def exec_module(self, module: ModuleType) -> None:
        from mooncake_trtllm.scheduler import MooncakeKvCacheConnectorScheduler
        from mooncake_trtllm.worker import MooncakeKvCacheConnectorWorker

        text = module.__name__.removeprefix(_PREFIX)
        try:
            pairs = urllib.parse.parse_qsl(text, keep_blank_values=True, strict_parsing=True)
        except ValueError as error:
            raise ImportError(f"{module.__name__}: {error}", name=module.__name__) from error
        for base in (MooncakeKvCacheConnectorScheduler, MooncakeKvCacheConnectorWorker):
            members = {"settings_in_code": dict(pairs), "__module__": module.__name__}
            setattr(module, base.__name__, type(base.__name__, (base,), members))


sys.meta_path.append(_Finder())
