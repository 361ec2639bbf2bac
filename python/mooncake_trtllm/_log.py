"""The package's logger, which never lets a failing handler of the user's out."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from typing import Any

__all__ = ["log"]


_LIKE_THE_CORE = logging.Formatter(
    "%(asctime)s.%(msecs)03d %(process)d I %(name)s: %(message)s", "%Y-%m-%d %H:%M:%S"
)


class _Log:
    """The calls of a logging.Logger that this package uses."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)
        self._lock = threading.Lock()
        self._told: set[tuple[object, ...]] = set()

    def debug(self, message: str, *args: Any) -> None:
        """Log for a developer."""
        self._tell(logging.DEBUG, message, args)

    def info(self, message: str, *args: Any) -> None:
        """Log what is good to know."""
        self._tell(logging.INFO, message, args)

    def warning(self, message: str, *args: Any) -> None:
        """Log what an operator should look at."""
        self._tell(logging.WARNING, message, args)

    def info_once(self, message: str, *args: Any) -> None:
        """Log what is good to know, unless this process has logged the same before."""
        if self._is_new(message, args):
            self._tell(logging.INFO, message, args)

    def warning_once(self, message: str, *args: Any) -> None:
        """Log a warning, unless this process has logged the same before."""
        if self._is_new(message, args):
            self._tell(logging.WARNING, message, args)

    def essential(self, message: str, *args: Any) -> None:
        """Log what an operator needs to judge an engine from outside.

        Level INFO. Python shows that to nobody who has configured nothing, and neither do the
        launchers of engines; then it goes to standard error, as the lines of the core do. A level
        that is set on this very logger is a choice and is obeyed.
        """
        heard = self._logger.isEnabledFor(logging.INFO) and self._logger.hasHandlers()
        if heard or self._logger.level != logging.NOTSET:
            self._tell(logging.INFO, message, args)
            return
        with contextlib.suppress(Exception):
            record = logging.LogRecord(
                self._logger.name, logging.INFO, __file__, 0, message, args, None
            )
            sys.stderr.write(_LIKE_THE_CORE.format(record) + "\n")
            sys.stderr.flush()

    def essential_once(self, message: str, *args: Any) -> None:
        """Like essential(), unless this process has logged the same before."""
        if self._is_new(message, args):
            self.essential(message, *args)

    def exception(self, message: str, *args: Any) -> None:
        """Log an error with the exception that is being handled."""
        self._tell(logging.ERROR, message, args, exc_info=True)

    def exception_once(self, message: str, *args: Any) -> None:
        """Like exception(), unless this process has logged the same before."""
        if self._is_new(message, args):
            self._tell(logging.ERROR, message, args, exc_info=True)

    def _is_new(self, message: str, args: tuple[Any, ...]) -> bool:
        with self._lock:
            known = (message, args) in self._told
            self._told.add((message, args))
        return not known

    def _tell(
        self, level: int, message: str, args: tuple[Any, ...], exc_info: bool = False
    ) -> None:
        with contextlib.suppress(Exception):
            self._logger.log(level, message, *args, exc_info=exc_info, stacklevel=3)


log = _Log("mooncake_trtllm")
