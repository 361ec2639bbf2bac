"""`plot`: figures (PNG and SVG) and one HTML report from what the other verbs print as JSON.

    mooncake-trtllm matrix --json > matrix.json
    mooncake-trtllm trace --curve --json > trace.json
    mooncake-trtllm plot matrix.json trace.json --out report

The report holds its figures itself and loads nothing. Needs matplotlib and Jinja2:
pip install matplotlib jinja2.
"""

from __future__ import annotations

import argparse
import base64
import datetime as dt
import importlib.util
import io
import json
import platform
import sys
from pathlib import Path
from typing import Any

from mooncake_trtllm import __version__
from mooncake_trtllm.cli.exits import GOOD, UsageError
from mooncake_trtllm.cli.figures import FIGURES, STYLE, Results
from mooncake_trtllm.cli.matrix import identical_hits
from mooncake_trtllm.cli.output import add_output_options, print_json
from mooncake_trtllm.cli.trace_report import LLAMA

__all__ = ["add_to", "run"]

_SCHEMAS = ("checks/1", "matrix/1", "trace/1", "timeline/1")
_NEEDS = ("matplotlib", "jinja2")
_DPI = 150
_TEMPLATE = "report.html.j2"


def add_to(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the verb to the command line."""
    parser = verbs.add_parser(
        "plot",
        help="draw figures and an HTML report of results",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "files",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="what selfcheck, trace, matrix and timeline printed with --json",
    )
    parser.add_argument(
        "--out", type=Path, default=Path("report"), metavar="DIR", help="default: report"
    )
    add_output_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs the verb."""
    missing = [name for name in _NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(
            f"plot needs {' and '.join(missing)}, which this environment has not; remedy: "
            "pip install matplotlib jinja2"
        )
    results = _read(options.files)
    named = ", ".join(map(str, options.files))
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        figures, written = _draw(results, options.out)
        report = options.out / "report.html"
        report.write_text(_report(results, figures), encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"--out {options.out}: {error.strerror}; remedy: a folder that can be written to"
        ) from error
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise UsageError(
            f"{named}: a field is missing or of another type ({type(error).__name__}: {error}); "
            "remedy: what a verb of this version printed with --json"
        ) from error
    if not written:
        raise UsageError(
            f"{named}: holds nothing to draw; remedy: results of trace, matrix or timeline"
        )
    written.append(str(report))
    if options.json:
        print_json({"schema": "plot/1", "files": written, "report": str(report)})
    else:
        sys.stdout.write("".join(f"{name}\n" for name in written))
    return GOOD


def _read(files: list[Path]) -> Results:
    results: Results = {}
    for file in files:
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or error
            raise UsageError(f"{file}: {reason}; remedy: what a verb printed with --json") from None
        schema = content.get("schema") if isinstance(content, dict) else None
        if schema not in _SCHEMAS:
            raise UsageError(
                f"{file}: its schema is {schema!r}; remedy: one of {', '.join(_SCHEMAS)}"
            )
        results.setdefault(schema, []).append(content)
    return results


def _draw(results: Results, folder: Path) -> tuple[list[dict[str, str]], list[str]]:
    """Writes each figure twice; returns what the report shows, and the files."""
    import matplotlib as mpl

    shown, written = [], []
    with mpl.rc_context(STYLE):
        for name, (title, draw) in FIGURES.items():
            figure = draw(results)
            if figure is None:
                continue
            for kind in ("png", "svg"):
                drawn = io.BytesIO()
                # Without a date, so that equal results give equal files.
                metadata = {"Date": None} if kind == "svg" else None
                figure.savefig(drawn, format=kind, dpi=_DPI, metadata=metadata)
                (folder / f"{name}.{kind}").write_bytes(drawn.getvalue())
                written.append(str(folder / f"{name}.{kind}"))
            data = "data:image/svg+xml;base64," + base64.b64encode(drawn.getvalue()).decode()
            shown.append({"title": title, "about": draw.__doc__ or "", "data": data})
    return shown, written


def _report(results: Results, figures: list[dict[str, str]]) -> str:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    rows = [row for matrix in results.get("matrix/1", []) for row in matrix["rows"]]
    return environment.get_template(_TEMPLATE).render(
        version=__version__,
        machine=platform.platform(),
        circumstances=_circumstances(results),
        date=dt.datetime.now(dt.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        checks=[check for checks in results.get("checks/1", []) for check in checks["checks"]],
        rows=rows,
        identical=identical_hits(rows) if rows else None,
        traces=results.get("trace/1", []),
        timelines=results.get("timeline/1", []),
        figures=figures,
        llama=f"ttft_speedup_modeled_{LLAMA}",
        verdict=_verdict(results, rows),
    )


def _circumstances(results: Results) -> list[str]:
    """Of each result that says so: on how many cores, and how busy the machine was at its end."""
    said = []
    for schema, contents in results.items():
        for content in contents:
            machine = content.get("machine") or {}
            load = machine.get("load_average")
            if load is not None:
                said.append(
                    f"{schema.partition('/')[0]}: {machine['cores']} cores, load average "
                    f"{' '.join(f'{average:.2f}' for average in load)} (1, 5 and 15 min)"
                )
    return said


def _verdict(results: Results, rows: list[dict[str, Any]]) -> list[tuple[bool, str]]:
    """The statements on top of the report, and whether each holds."""
    checks = results.get("checks/1", [])
    played = [*rows, *results.get("trace/1", [])]
    said = []
    if checks:
        failed = sum(not check["ok"] for one in checks for check in one["checks"])
        total = sum(len(one["checks"]) for one in checks)
        said.append((not failed, f"Correctness gate: {total - failed} of {total} checks passed."))
    if rows:
        same = identical_hits(rows)
        text = "are identical" if same else "DIFFER"
        said.append((same, f"Hit counts of the {len(rows)} rows {text} in each scenario."))
    if played:
        errors = sum(row["errors"] for row in played)
        hit = sum(row["blocks_hit"] for row in played)
        verified = sum(row["blocks_verified"] for row in played)
        ideal = all(row["blocks_hit"] == row["blocks_hit_ideal"] for row in played)
        said.append((errors == 0, f"{errors} errors."))
        said.append((verified == hit, f"{verified} of {hit} reused blocks verified, every byte."))
        text = "as much as" if ideal else "NOT as much as"
        said.append((ideal, f"Reused {text} an exact unlimited cache could."))
    return said
