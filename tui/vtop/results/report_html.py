"""Reports as one HTML page that opens anywhere: no script, no network, charts as inline SVG."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from vtop import __version__, units
from vtop.results.blocks import Bars, Block, Bullets, Command, Heading, Lines, Table, Text

_STYLE = """
:root{color-scheme:light dark;--ink:#1a1d21;--dim:#5c646d;--paper:#fff;--rule:#d8dde3;--band:#f4f6f8;--loud:#9a3412;
--loudpaper:#fff4e8}
@media(prefers-color-scheme:dark){:root{--ink:#e6e8eb;--dim:#9aa3ad;--paper:#15181c;--rule:#353b42;--band:#1d2126;
--loud:#fdba74;--loudpaper:#33230f}}
body{margin:2rem auto;max-width:84rem;padding:0 1rem;background:var(--paper);color:var(--ink);
font:15px/1.5 system-ui,sans-serif}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2rem}
.wrap{overflow-x:auto;margin:.9rem 0}table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.85rem}
th,td{padding:.3rem .55rem;border-bottom:1px solid var(--rule);text-align:right;white-space:nowrap;vertical-align:top}
th{color:var(--dim);font-weight:600}
td.wide,th.wide,td:first-child,th:first-child{text-align:left}
td.wide{white-space:normal;min-width:9rem}tbody tr:nth-child(even){background:var(--band)}
.loud{color:var(--loud);background:var(--loudpaper);border-left:4px solid var(--loud);padding:.5rem .8rem;
font-weight:600}
pre{background:var(--band);padding:.7rem 1rem;overflow-x:auto}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(28rem,1fr));gap:1rem}
figure{margin:0;background:#fff;border:1px solid var(--rule);border-radius:6px;padding:.4rem}
figcaption{color:#1a1d21;font-size:.85rem;font-weight:600;padding:.2rem .5rem}
svg{width:100%;height:auto;display:block}footer{color:var(--dim);margin-top:3rem;font-size:.85rem}
"""
_COLOURS = ("#2563eb", "#d97706", "#059669", "#9333ea", "#dc2626", "#0891b2")
_UNWANTED = re.compile(r"<!--.*?-->|<script\b.*?</script>|<script\b[^>]*/>", re.DOTALL)
"""pygal signs its charts and configures its own script, which is not there."""


def page(title: str, blocks: Sequence[Block]) -> str:
    """The whole page.

    Args:
        title: of the page.
        blocks: what is on it, in order.
    """
    drawing = _pygal()
    body: list[str] = []
    charts: list[str] = []
    for number, block in enumerate(blocks):
        if isinstance(block, Bars | Lines):
            if drawing is not None and (drawn := _chart(drawing, block, number)):
                charts.append(drawn)
            continue
        if charts:
            body.append(f'<div class="charts">{"".join(charts)}</div>')
            charts = []
        body.append(_block(block))
    if charts:
        body.append(f'<div class="charts">{"".join(charts)}</div>')
    if drawing is None:
        body.append("<p>Without charts: they need pygal (pip install 'vllm-vtop[report]').</p>")
    policy = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f'<meta name="viewport" content="width=device-width,initial-scale=1"><title>{html.escape(title)}</title>'
        f"<style>{_STYLE}</style></head>\n<body>\n"
        + "\n".join(body)
        + f"\n<footer>vtop {__version__}</footer>\n</body></html>\n"
    )


def _block(block: Heading | Text | Bullets | Command | Table) -> str:
    match block:
        case Heading(text, level):
            return f"<h{level}>{html.escape(text)}</h{level}>"
        case Text(text, loud):
            return f"<p{' class=loud' if loud else ''}>{html.escape(text)}</p>"
        case Bullets(items):
            return f"<ul>{''.join(f'<li>{html.escape(item)}</li>' for item in items)}</ul>"
        case Command(text):
            return f"<pre>{html.escape(text)}</pre>"
        case Table(headers, rows, wide):
            head = _cells("th", headers, wide) if any(headers) else ""
            lines = "".join(f"<tr>{_cells('td', row, wide)}</tr>" for row in rows)
            top = f"<thead><tr>{head}</tr></thead>" if head else ""
            return f'<div class="wrap"><table>{top}<tbody>{lines}</tbody></table></div>'


def _cells(tag: str, texts: Sequence[str], wide: Sequence[int]) -> str:
    return "".join(
        f"<{tag}{' class=wide' if index in wide else ''}>{html.escape(text)}</{tag}>"
        for index, text in enumerate(texts)
    )


def _pygal() -> ModuleType | None:
    """Charts are an extra: `pip install 'vllm-vtop[report]'`."""
    try:
        import pygal
    except ImportError:
        return None
    return pygal  # type: ignore[no-any-return]


def _chart(pygal: ModuleType, block: Bars | Lines, number: int) -> str:
    style = pygal.style.Style(
        background="white",
        plot_background="white",
        foreground="#1a1d21",
        foreground_strong="#1a1d21",
        foreground_subtle="#5c646d",
        colors=_COLOURS,
        font_family="system-ui, sans-serif",
        label_font_size=13,
        major_label_font_size=13,
        value_font_size=13,
        legend_font_size=13,
        title_font_size=14,
    )
    common: dict[str, Any] = {
        "style": style,
        "js": [],
        "disable_xml_declaration": True,
        "width": 640,
        "height": 320,
        "show_legend": False,
        "margin": 12,
    }
    chart = _bars(pygal, block, common) if isinstance(block, Bars) else _lines(pygal, block, common)
    if chart is None:
        return ""
    # A name of its own, the same every time: the page of one record never changes.
    chart.uuid = f"vtop-{number}"
    svg = _UNWANTED.sub("", chart.render(is_unicode=True))
    title = html.escape(block.title)
    return f'<figure role="img" aria-label="{title}"><figcaption>{title}</figcaption>{svg}</figure>'


def _bars(pygal: ModuleType, block: Bars, common: dict[str, Any]) -> Any:
    if not any(value is not None for value in block.values):
        return None
    # Bars begin at 0, or their lengths lie.
    chart = pygal.Bar(
        **common,
        print_values=True,
        formatter=lambda value: "" if value is None else f"{units.significant(value)} {block.unit}",
        include_x_axis=True,
        x_label_rotation=20 if max(map(len, block.names)) * len(block.names) > 50 else 0,
    )
    chart.x_labels = list(block.names)
    points: list[Any] = []
    for index, value in enumerate(block.values):
        interval = block.intervals[index] if index < len(block.intervals) else None
        point: dict[str, Any] = {"value": value, "color": _COLOURS[index % len(_COLOURS)]}
        if interval is not None:
            point["ci"] = {"low": interval[0], "high": interval[1]}
        points.append(point)
    chart.add(block.title, points)
    return chart


def _tick(value: float) -> str:
    """A round number on an axis: 0.8, 20, 1,200."""
    return f"{value:,.6g}"


def _lines(pygal: ModuleType, block: Lines, common: dict[str, Any]) -> Any:
    chart = pygal.XY(
        **{**common, "show_legend": len(block.series) > 1},
        stroke=not block.dots_only,
        dots_size=2 if block.dots_only else 1.5,
        x_title=block.x_title,
        y_title=block.y_title,
        include_x_axis=True,
        formatter=lambda point: ", ".join(map(units.significant, point)),
        x_value_formatter=_tick,
        value_formatter=_tick,
    )
    for name, points in block.series:
        chart.add(name, list(points))
    return chart
