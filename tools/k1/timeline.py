"""The boot timeline as a picture: one bar a board, one colour a stage, in SVG."""

from __future__ import annotations

from collections.abc import Mapping
from xml.sax.saxutils import escape, quoteattr

# Distinct also for most colour-blind eyes (Okabe and Ito).
_COLOURS = ("#999999", "#e69f00", "#56b4e9", "#009e73", "#f0e442", "#0072b2", "#cc79a7")
_FAILED = "#d55e00"
_LEFT, _WIDTH, _ROW, _BAR, _TOP = 160, 800, 34, 20, 50
_STEPS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500)


def svg(boards: Mapping[str, Mapping[str, float]], failed: Mapping[str, str], stages: tuple[str, ...]) -> str:
    """The picture. boards: title → stage → seconds since power-on; failed: title → why it went no further."""
    longest = max((seconds for reached in boards.values() for seconds in reached.values()), default=0.0) or 1.0
    height = _TOP + _ROW * len(boards) + 40
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LEFT + _WIDTH + 40}" height="{height}"'
        ' font-family="sans-serif" font-size="12">',
        "<title>Time from power-on to each stage</title>",
        *_legend(stages),
        *_axis(longest, height),
    ]
    for row, (title, reached) in enumerate(boards.items()):
        parts += _bar(row, title, reached, failed.get(title, ""), stages, longest)
    return "\n".join([*parts, "</svg>", ""])


def _legend(stages: tuple[str, ...]) -> list[str]:
    found = []
    for i, stage in enumerate(stages):
        x = _LEFT + i * _WIDTH // len(stages)
        found.append(f'<rect x="{x}" y="12" width="12" height="12" fill="{_COLOURS[i % len(_COLOURS)]}"/>')
        found.append(f'<text x="{x + 16}" y="22">{escape(stage)}</text>')
    return found


def _axis(longest: float, height: int) -> list[str]:
    step = next((step for step in _STEPS if longest / step <= 10), longest)
    found, count = [], int(longest / step)
    for i in range(count + 1):
        x = _x(i * step, longest)
        found.append(f'<line x1="{x}" y1="{_TOP - 8}" x2="{x}" y2="{height - 30}" stroke="#dddddd"/>')
        found.append(f'<text x="{x}" y="{height - 14}" text-anchor="middle">{i * step:g} s</text>')
    return found


def _bar(
    row: int, title: str, reached: Mapping[str, float], failed: str, stages: tuple[str, ...], longest: float
) -> list[str]:
    """A stage's part ends when the stage is reached."""
    y, last = _TOP + row * _ROW, 0.0
    found = [f'<text x="{_LEFT - 10}" y="{y + 14}" text-anchor="end">{escape(title)}</text>']
    for i, stage in enumerate(stages):
        if stage not in reached:
            continue
        begin, end = _x(last, longest), _x(max(reached[stage], last), longest)
        tip = quoteattr(f"{stage} {reached[stage]:.2f} s")
        found.append(
            f'<rect x="{begin}" y="{y}" width="{round(end - begin, 1)}" height="{_BAR}"'
            f' fill="{_COLOURS[i % len(_COLOURS)]}" aria-label={tip}><title>{escape(tip[1:-1])}</title></rect>'
        )
        last = max(reached[stage], last)
    if failed:
        x = _x(last, longest)
        found.append(f'<text x="{x + 4}" y="{y + 15}" fill="{_FAILED}" font-weight="bold">✗ {escape(failed)}</text>')
    return found


def _x(seconds: float, longest: float) -> float:
    return round(_LEFT + seconds / longest * _WIDTH, 1)
