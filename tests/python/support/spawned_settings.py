"""What a spawned process imports by name: the settings of a class that a configuration names."""

from __future__ import annotations

import importlib
from types import SimpleNamespace


def settings_of(module: str, worker_class: str) -> tuple[str, str | None, int]:
    """Back end, model revision and key epoch of a worker made as the runtime makes it."""
    worker = getattr(importlib.import_module(module), worker_class)(SimpleNamespace(model="m"))
    settings = worker._instance.settings
    worker.close()
    return settings.backend, settings.model_revision, settings.key_epoch
