"""A page of HTML for people: words, tables and charts in one file, without scripts and without anything from elsewhere.

Nothing that a client chose is anything but text in it.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from html import escape

WIDTH, HEIGHT = 920, 240
LEFT, BOTTOM = 90, 24
COLUMN_MAX = 110
PARTS_MAX = 9
LABELS_MAX = 8
"""Below the axis."""
COLOURS = (
    "#2f6f8f",
    "#e07a2f",
    "#4f9d69",
    "#b04a5a",
    "#8d6fb3",
    "#c2a83e",
    "#5aa9b8",
    "#8a8a8a",
    "#d48fa8",
    "#3d4f77",
)
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 960px; padding: 0 1em; color: #1c2630; }
h1 { margin-bottom: 0 } h2 { margin-top: 2em; border-bottom: 1px solid #d5dce2; padding-bottom: .2em }
table { border-collapse: collapse; width: 100%; font-size: 14px } th { text-align: left; color: #51606e }
td, th { padding: .25em .8em .25em 0; border-bottom: 1px solid #e8ecef; overflow-wrap: anywhere; vertical-align: top }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap }
.good { background: #e5f3ea; border-left: 5px solid #4f9d69 }
.bad { background: #fbe9e7; border-left: 5px solid #b04a5a }
.good, .bad { padding: .7em 1em; font-size: 17px } .key { font-size: 13px; color: #51606e }
.key i { display: inline-block; width: .9em; height: .9em; margin: 0 .3em 0 1em; vertical-align: -.1em }
svg text { font: 12px system-ui, sans-serif; fill: #51606e }
@media print { h2 { break-after: avoid } }
"""

Cell = str | int | float | None


class Page:
    """Parts are added from top to bottom."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._parts = [f"<h1>{escape(title)}</h1>"]

    def heading(self, text: str) -> None:
        """Add a heading over what follows."""
        self._parts.append(f"<h2>{escape(text)}</h2>")

    def paragraph(self, text: str, kind: str = "") -> None:
        """`kind`: "good", "bad" or ""."""
        self._parts.append(f'<p class="{kind}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>")

    def table(self, headings: Sequence[str], rows: Iterable[Sequence[Cell]]) -> None:
        """Numbers stand to the right."""
        listed = [list(row) for row in rows]
        are_numbers = [
            bool(listed) and all(isinstance(row[at], (int, float, type(None))) for row in listed)
            for at in range(len(headings))
        ]
        head = "".join(
            f"<th{_class(is_number)}>{escape(text)}</th>"
            for text, is_number in zip(headings, are_numbers, strict=True)
        )
        body = "".join(
            "<tr>"
            + "".join(
                f"<td{_class(is_number)}>{escape(_shown(cell))}</td>"
                for cell, is_number in zip(row, are_numbers, strict=True)
            )
            + "</tr>\n"
            for row in listed
        )
        self._parts.append(f"<table><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table>")

    def bars(self, label: str, columns: Mapping[str, Mapping[str, float]]) -> None:
        """A column for each name, in which the parts stand on one another; part names keep their colours."""
        parts = list(dict.fromkeys(name for column in columns.values() for name in column))
        if not parts:
            return
        colours = {name: COLOURS[at % len(COLOURS)] for at, name in enumerate(parts)}
        highest = max(sum(column.values()) for column in columns.values()) or 1
        scale = _Scale(len(columns), highest)
        drawn = [scale.axis()]
        every = -(-len(columns) // LABELS_MAX)
        for at, (name, column) in enumerate(columns.items()):
            below = 0.0
            for part in parts:
                value = column.get(part, 0.0)
                if value:
                    bar = scale.bar(at, below, value, f"{name}, {part}")
                    drawn.append(bar.replace("<rect", f'<rect fill="{colours[part]}"', 1))
                below += value
            if at % every == 0:
                drawn.append(scale.label(at, name))
        key = "".join(f'<i style="background:{colours[name]}"></i>{escape(name)}' for name in parts)
        self._parts.append(
            f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">{"".join(drawn)}</svg>'
            f'<p class="key">{escape(label)}{key}</p>'
        )

    def text(self) -> str:
        """The whole file: one HTML document without scripts, which loads nothing."""
        return (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
            f"<title>{escape(self._title)}</title><style>{_STYLE}</style></head>\n<body>"
            + "\n".join(self._parts)
            + "\n</body></html>\n"
        )


def _class(is_number: bool) -> str:
    return ' class="n"' if is_number else ""


def _shown(cell: Cell) -> str:
    if cell is None:
        return ""
    return cell if isinstance(cell, str) else f"{cell:,}"


def _short(name: str) -> str:
    return name if len(name) <= 16 else name[:15] + "…"


def _rounded(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.3g}"


def grouped(columns: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """For a chart: the largest parts by name, the others together."""
    totals: dict[str, float] = defaultdict(float)
    for column in columns.values():
        for part, count in column.items():
            totals[part] += count
    named = set(sorted(totals, key=lambda part: -totals[part])[:PARTS_MAX])
    found: dict[str, dict[str, float]] = {}
    for name, column in columns.items():
        shown = {part: count for part, count in column.items() if part in named}
        others = sum(count for part, count in column.items() if part not in named)
        found[name] = shown | ({"others": others} if others else {})
    return found


class _Scale:
    """Where things stand in a chart."""

    def __init__(self, columns: int, highest: float) -> None:
        self.highest = highest
        self.step = min((WIDTH - LEFT) / columns, COLUMN_MAX)

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - 12) * value / self.highest

    def x(self, at: int) -> float:
        return LEFT + at * self.step

    def axis(self) -> str:
        lines = []
        for value in (0.0, self.highest / 2, self.highest):
            y = self.y(value)
            lines.append(
                f'<line x1="{LEFT}" x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="#d5dce2"/>'
                f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{_rounded(value)}</text>'
            )
        return "".join(lines)

    def label(self, at: int, name: str) -> str:
        middle = self.x(at) + self.step / 2
        return f'<text x="{middle:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{escape(_short(name))}</text>'

    def bar(self, at: int, below: float, value: float, told: str) -> str:
        """Of one column, upon what is below."""
        top = self.y(below + value)
        return (
            f'<rect x="{self.x(at) + self.step * 0.1:.1f}" y="{top:.1f}" width="{self.step * 0.8:.1f}"'
            f' height="{self.y(below) - top:.1f}"><title>{escape(told)}: {_rounded(value)}</title></rect>'
        )
