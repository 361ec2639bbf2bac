"""What scheduler and worker have in common: start-up, and callbacks that never raise."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from mooncake_trtllm._args import EngineArgs, read_engine_args
from mooncake_trtllm._checks import check_engine
from mooncake_trtllm._log import log
from mooncake_trtllm._stores import StoreLease, stores
from mooncake_trtllm.errors import KvConnectorConfigError, KvConnectorError
from mooncake_trtllm.identity import EngineIdentity, engine_identity
from mooncake_trtllm.rank import Rank, resolve_rank
from mooncake_trtllm.settings import ConnectorSettings, load_settings
from mooncake_trtllm.shim import surface_problems

__all__ = ["Instance", "start_base", "start_instance", "total"]

_Callback = TypeVar("_Callback", bound=Callable[..., Any])
# One failure is worth a line; a failure at every step of a busy engine would fill a disk.
_LOGGED_FAILURES = 100


@dataclass(frozen=True)
class Instance:
    """What a connector knows when its constructor returns."""

    settings: ConnectorSettings
    args: EngineArgs
    rank: Rank
    identity: EngineIdentity
    lease: StoreLease


def start_instance(llm_args: Any, settings_in_code: Mapping[str, str]) -> Instance:
    """Read settings and arguments, identify the model, open the store.

    Raises KvConnectorConfigError or KvConnectorStoreError: start-up fails then.
    """
    settings = load_settings(settings_in_code)
    try:
        args = read_engine_args(llm_args)
        check_engine(llm_args, args)
        rank = resolve_rank(args.tensor_parallel_size, settings.rank, settings.world_size)
        identity = engine_identity(
            args, model_revision=settings.model_revision, key_epoch=settings.key_epoch
        )
    except KvConnectorError:
        raise
    except Exception as error:
        raise KvConnectorConfigError(
            f"the runtime's arguments ({type(llm_args).__name__}) or its rank cannot be read: "
            f"{type(error).__name__}: {error}. Remedy: pass the arguments that the runtime itself "
            "passes; if it did, please report this"
        ) from error
    return Instance(settings, args, rank, identity, stores.acquire(settings))


def start_base(connector: Any, base: Any, llm_args: Any) -> None:
    """Run the constructor of the runtime's class, and say what its version has that we lack."""
    try:
        base.__init__(connector, llm_args)
    except TypeError:  # a stand-in whose constructor takes nothing
        base.__init__(connector)
    for problem in surface_problems(type(connector), base):
        log.warning_once("%s; this version of the connector does without it", problem)


def total(fallback: Callable[[], Any]) -> Callable[[_Callback], _Callback]:
    """Make a callback of the runtime return `fallback()` whatever happens inside.

    An exception would end the runtime's loop, under tensor parallelism with other ranks waiting.
    """

    def decorate(callback: _Callback) -> _Callback:
        failures = 0

        @functools.wraps(callback)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            nonlocal failures
            try:
                return callback(*args, **kwargs)
            except Exception:  # noqa: BLE001 - nothing may leave a callback
                failures += 1
                if failures <= _LOGGED_FAILURES:
                    log.exception(
                        "%s failed and is treated as a miss; please report this", callback.__name__
                    )
                return fallback()

        return wrapper  # type: ignore[return-value]

    return decorate
