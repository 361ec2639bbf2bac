"""The figures that `plot` draws. Needs matplotlib, which nothing else here does.

Each function takes what the verbs print as JSON and returns a figure, or None where there is
nothing to draw. Colours are the Okabe-Ito palette, which colour-blind readers can tell apart.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from mooncake_trtllm.cli.trace_report import LLAMA

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["FIGURES", "STYLE", "Results"]

_BLUE, _ORANGE, _GREEN, _GREY, _SKY = "#0072B2", "#E69F00", "#009E73", "#6E6E6E", "#56B4E9"
_SERIES = (_BLUE, _SKY, _ORANGE, _GREEN)
STYLE = {
    "font.size": 9,
    "legend.fontsize": 8.5,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": "#DDDDDD",
    "legend.frameon": False,
    "svg.hashsalt": "mooncake-trtllm",
}
"""Must be in force while a figure is drawn and saved."""
_WIDTH = 8.0

Results = dict[str, list[dict[str, Any]]]
"""JSON objects by schema, such as `trace/1`."""


def _canvas(height: float, panels: Sequence[float] = (1.0,)) -> tuple[Figure, list[Axes]]:
    from matplotlib.figure import Figure as NewFigure

    figure = NewFigure(figsize=(_WIDTH, height), layout="constrained")
    axes = figure.subplots(1, len(panels), width_ratios=panels, squeeze=False)
    return figure, list(axes[0])


def _rows(results: Results, scenario: str) -> list[dict[str, Any]]:
    """Rows of matrices; a trace alone is an `agentic` row."""
    rows = [row for matrix in results.get("matrix/1", []) for row in matrix["rows"]]
    if not rows and scenario == "agentic":
        return results.get("trace/1", [])
    return [row for row in rows if row["scenario"] == scenario]


def _grouped_bars(
    axes: Axes,
    groups: list[str],
    series: dict[str, list[float | None]],
    form: str,
) -> None:
    """One group of bars for each name on the axis, each bar with its value above."""
    width = 0.8 / max(len(series), 1)
    for number, (name, values) in enumerate(series.items()):
        places = [group + (number - (len(series) - 1) / 2) * width for group in range(len(groups))]
        bars = axes.bar(
            places,
            [0.0 if value is None else value for value in values],
            width * 0.92,
            label=name,
            color=_SERIES[number % len(_SERIES)],
        )
        labels = ["none" if value is None else form.format(value) for value in values]
        crowded = len(groups) * len(series) > 8
        axes.bar_label(bars, labels, padding=2, fontsize=7, rotation=90 if crowded else 0)
    axes.set_xticks(range(len(groups)), groups)
    axes.grid(axis="y")


def _by_backend(
    rows: list[dict[str, Any]], value: Callable[[dict[str, Any]], float | None]
) -> tuple[list[str], dict[str, list[float | None]]]:
    """Back ends, and for each kind of row the values in their order."""
    groups = list(dict.fromkeys(row["backend"] for row in rows))
    kinds = list(dict.fromkeys((row["tp"], row["granularity"]) for row in rows))
    found = {(row["backend"], row["tp"], row["granularity"]): value(row) for row in rows}
    return groups, {
        f"TP {tp}, by {granularity}": [found.get((backend, tp, granularity)) for backend in groups]
        for tp, granularity in kinds
    }


def hit_ratio(results: Results) -> Figure | None:
    """Measured: share of the reusable blocks that was reused, by back end."""
    scenarios = [name for name in ("agentic", "restart") if _rows(results, name)]
    if not scenarios:
        return None
    figure, panels = _canvas(3.3, (1.0,) * len(scenarios))
    for axes, scenario in zip(panels, scenarios, strict=True):
        rows = _rows(results, scenario)
        groups, series = _by_backend(rows, lambda row: row["block_hit_ratio"])
        _grouped_bars(axes, groups, series, "{:.4f}")
        ideal = max(row["blocks_hit_ideal"] / max(row["blocks_matchable"], 1) for row in rows)
        axes.axhline(
            min(ideal, 1.0), color=_GREY, linestyle="--", linewidth=1, label="exact unlimited cache"
        )
        axes.set_ylim(0, 1.25)
        axes.set_yticks([0, 0.25, 0.5, 0.75, 1])
        what = "the first instance" if scenario == "agentic" else "a fresh instance, warm store"
        axes.set_title(f"{scenario}: {what}")
    panels[0].set_ylabel("block hit ratio")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5)
    return figure


def warm_up(results: Results) -> Figure | None:
    """Measured: how the hit ratio grows with the requests of a trace."""
    traces = [row for row in results.get("trace/1", []) if row.get("curve")]
    traces = traces or [row for row in _rows(results, "agentic") if row.get("curve")]
    if not traces:
        return None
    trace = traces[0]
    curve = trace["curve"]
    numbers = [point["request"] + 1 for point in curve]
    single = [point["hit"] / point["matchable"] if point["matchable"] else 0 for point in curve]
    hit = matchable = 0
    total = []
    for point in curve:
        hit, matchable = hit + point["hit"], matchable + point["matchable"]
        total.append(hit / matchable if matchable else 0)
    figure, (axes,) = _canvas(3.2)
    axes.scatter(numbers, single, s=10, color=_SKY, label="of one request")
    axes.plot(numbers, total, color=_BLUE, linewidth=2, label="of all requests so far")
    axes.annotate(
        f"{total[-1]:.4f}",
        (numbers[-1], total[-1]),
        xytext=(5, 0),
        textcoords="offset points",
        va="center",
        color=_BLUE,
        annotation_clip=False,
    )
    axes.set_xlabel("requests served since the store was empty")
    axes.set_ylabel("block hit ratio")
    axes.set_ylim(-0.03, 1.05)
    axes.grid()
    axes.set_title(f"Warm-up on {trace['backend']}, TP {trace['tp']}")
    axes.legend(loc="lower right")
    return figure


def ttft(results: Results) -> Figure | None:
    """Modeled: how many times shorter the time to first token is, from what was measured."""
    rows = _rows(results, "agentic")
    if not rows:
        return None
    figure, panels = _canvas(3.3, (1.0, 1.0))
    titles = ("simulated geometry", "Llama-3.1-8B bf16, 128 KiB a token")
    for axes, field, title in zip(
        panels, ("ttft_speedup_modeled", f"ttft_speedup_modeled_{LLAMA}"), titles, strict=True
    ):
        groups, series = _by_backend(rows, operator.itemgetter(field))
        _grouped_bars(axes, groups, series, "{:.2f}")
        axes.axhline(1.0, color=_GREY, linestyle="--", linewidth=1, label="no reuse")
        axes.margins(y=0.2)
        axes.set_title(title)
    panels[0].set_ylabel("TTFT x modeled")
    figure.suptitle(
        f"Modeled at {rows[0]['prefill_tok_per_s']:g} prefill tokens/s and the load bandwidth "
        "measured",
        fontsize=9,
    )
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5)
    return figure


def bandwidth(results: Results) -> Figure | None:
    """Measured: bytes a second that the connector moved."""
    rows = _rows(results, "agentic")
    if not rows:
        return None
    figure, panels = _canvas(3.3, (1.0, 1.0))
    for axes, way in zip(panels, ("load", "save"), strict=True):
        groups, series = _by_backend(rows, operator.itemgetter(f"{way}_gb_per_s"))
        _grouped_bars(axes, groups, series, "{:.2f}")
        axes.margins(y=0.2)
        axes.set_title(way)
    panels[0].set_ylabel("GB/s, all ranks")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5)
    return figure


def timeline(results: Results) -> Figure | None:
    """Modeled: one prompt by blocks and by layers, and the time by the share that is stored."""
    from mooncake_trtllm.cli.timeline import prefix_of

    found = results.get("timeline/1", [])
    if not found:
        return None
    content = found[0]
    rows = sorted(content["rows"], key=lambda row: row["reused_tokens"])
    shown = max(rows, key=lambda row: row["ttft_block_s_modeled"] - row["ttft_layer_s_modeled"])
    prefix = prefix_of(content, shown["prompt_tokens"], shown["reused_tokens"])
    figure, (left, right) = _canvas(3.6, (1.7, 1.0))
    lanes = {"load": (_ORANGE, []), "compute": (_BLUE, [])}  # type: dict[str, Any]
    load, compute = prefix.load_s / prefix.layers, prefix.compute_s / prefix.layers
    for layer in range(prefix.layers):
        lanes["load"][1].append((3.0, layer * load, load))
        lanes["compute"][1].append((2.4, prefix.load_s + layer * compute, compute))
    for span in prefix.layer_spans():
        lanes["load"][1].append((1.0, span.load_begin_s, load))
        lanes["compute"][1].append((0.4, span.compute_begin_s, compute))
    for name, (colour, spans) in lanes.items():
        left.barh(
            [lane for lane, _, _ in spans],
            [length for _, _, length in spans],
            0.5,
            left=[begin for _, begin, _ in spans],
            color=colour,
            edgecolor="white",
            linewidth=0.4,
            label=name,
        )
    for lane, seconds in ((2.7, prefix.block_s), (0.7, prefix.layer_s)):
        left.text(seconds, lane, f"  {seconds:.2f} s", va="center")
    left.axvline(prefix.recompute_s, color=_GREY, linestyle="--", linewidth=1, label="recompute")
    left.set_yticks([2.7, 0.7], ["by blocks", "by layers"])
    left.set_ylim(-0.1, 3.5)
    left.set_xlim(0, max(prefix.recompute_s, prefix.block_s) * 1.14)
    left.set_xlabel("seconds since the request began")
    left.set_title(f"{shown['reused_tokens']} of {shown['prompt_tokens']} tokens stored")
    left.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3)
    shares = [row["reused_tokens"] / row["prompt_tokens"] for row in rows]
    for path, colour, name in (
        ("recompute", _GREY, "recompute"),
        ("block", _ORANGE, "by blocks"),
        ("layer", _BLUE, "by layers"),
    ):
        times = [row[f"ttft_{path}_s_modeled"] for row in rows]
        right.plot(shares, times, color=colour, marker="o", markersize=4, label=name)
    right.set_ylim(bottom=0)
    right.set_xlabel("share of the prompt that is stored")
    right.set_ylabel("time to first token, s")
    right.grid()
    right.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3, columnspacing=1)
    right.set_title("by share stored")
    figure.suptitle(
        f"Modeled: {content['model']}, {content['prefill_tok_per_s']:g} prefill tokens/s, "
        f"load at {content['load_gb_per_s']:.2f} GB/s ({content['load_gb_per_s_source']})",
        fontsize=9,
    )
    return figure


FIGURES: dict[str, tuple[str, Callable[[Results], Figure | None]]] = {
    "hit_ratio": ("Hit ratio by back end (measured)", hit_ratio),
    "warm_up": ("Warm-up curve (measured)", warm_up),
    "ttft": ("Time to first token (modeled)", ttft),
    "bandwidth": ("Bandwidth (measured)", bandwidth),
    "timeline": ("Blocks against layers (modeled)", timeline),
}
"""Name, title and drawing, in the order of the report."""
