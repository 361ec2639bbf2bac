"""`explain`: what became of the last requests of an engine that runs, one line each.

What the engine had itself (matched), what was offered, and what ended the prefix. Read from the
engine's metrics port, so MC_METRICS_PORT must be set there; here it says where to ask.
"""

from __future__ import annotations

import argparse
import http.client
import re
import sys
import urllib.error
import urllib.request

from mooncake_trtllm.cli.exits import GOOD, UNREACHABLE, RunError, UsageError
from mooncake_trtllm.cli.output import add_output_options, print_json

__all__ = ["add_to", "run"]

_TIMEOUT_S = 10.0
_LIMIT_BYTES = 16 << 20
_LARGEST_PORT = 65535
_HOST = re.compile(r"[^\s:/@?#\[\]]+|\[[0-9A-Fa-f:.]+(%\w+)?\]")
_LINE = re.compile(r"(connector \d+: )?request \d+: ")


def add_to(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the verb to the command line."""
    parser = verbs.add_parser(
        "explain",
        help="say of the last requests of a running engine what was offered, and why not more",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--address",
        metavar="HOST:PORT",
        help="metrics port of rank 0 (default: what MC_METRICS_HOST and MC_METRICS_PORT say)",
    )
    add_output_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs the verb."""
    address = _address_of_settings() if options.address is None else _checked(options.address)
    lines = _ask(address)
    if options.json:
        print_json({"schema": "explain/1", "address": address, "requests": lines})
    else:
        sys.stdout.write("".join(f"{line}\n" for line in lines))
    if not lines:
        sys.stderr.write("no request was asked about yet, or this is not rank 0's port\n")
    return GOOD


def _checked(address: str) -> str:
    """HOST:PORT, or [IPv6]:PORT. Raises UsageError."""
    host, colon, port = address.rpartition(":")
    reason = None
    if not colon or "]" in port:
        reason = "it names no port"
    elif not _HOST.fullmatch(host):
        reason = f"{host!r} is no host" if host else "it names no host"
    elif not (port.isascii() and port.isdigit() and 1 <= int(port) <= _LARGEST_PORT):
        reason = f"{port!r} is no port from 1 to {_LARGEST_PORT}"
    if reason is not None:
        raise UsageError(
            f"--address {address}: {reason}; remedy: HOST:PORT, such as 127.0.0.1:9400, or "
            "[::1]:9400"
        )
    return address


def _address_of_settings() -> str:
    from mooncake_trtllm.settings import load_settings

    host, port = load_settings({"MC_BACKEND": "memory"}).metrics_address
    if not port:
        raise UsageError(
            "MC_METRICS_PORT is 0, so that nothing says where the engine serves its metrics; "
            "remedy: set it as for the engine, or --address HOST:PORT"
        )
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _ask(address: str) -> list[str]:
    # No proxy: it is an address of the operator's own network.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://{address}/explain", timeout=_TIMEOUT_S) as reply:
            content: bytes = reply.read(_LIMIT_BYTES)
            if reply.length:
                raise http.client.IncompleteRead(content, reply.length)
    except urllib.error.HTTPError as error:
        with error:
            raise _another_program(address, f"HTTP {error.code} {error.reason}") from None
    except (ValueError, http.client.InvalidURL) as error:  # of the address
        raise UsageError(f"--address {address}: {error}; remedy: HOST:PORT") from None
    except (urllib.error.URLError, OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise RunError(
            f"{address}: no engine answers there ({reason}); remedy: start it with "
            "MC_METRICS_PORT, and name the port of rank 0",
            UNREACHABLE,
        ) from None
    lines = content.decode(errors="replace").splitlines()
    strange = next((line for line in lines if not _LINE.match(line)), None)
    if strange is not None:
        raise _another_program(address, repr(strange[:80]))
    return [_printable(line) for line in lines]


def _another_program(address: str, said: str) -> RunError:
    return RunError(
        f"{address}: what answers there is no engine of this product ({_printable(said)}); remedy: "
        "name the metrics port of rank 0",
        UNREACHABLE,
    )


def _printable(text: str) -> str:
    """What goes to a terminal must not drive it."""
    return "".join(c if c.isprintable() else "?" for c in text)
