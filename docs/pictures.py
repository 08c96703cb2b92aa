"""The pictures of the documentation: ``python docs/pictures.py`` writes them as SVG.

Each has a background of its own and follows the reader's colour scheme, so that it is
legible on any page.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

FOLDER = Path(__file__).parent / "pages" / "images"

STYLE = """
:root { --ground: #ffffff; --ink: #1c2430; --soft: #5b6673; --line: #9aa5b1;
  --blue: #d6e6fb; --green: #d8f0dc; --amber: #fdebc8; --red: #fadbd8;
  --grey: #eef1f4; }
@media (prefers-color-scheme: dark) {
  :root { --ground: #171b22; --ink: #e8edf3; --soft: #a3adb9; --line: #66717e;
    --blue: #1f3d63; --green: #1f4a2c; --amber: #5a4417; --red: #5c2a26;
    --grey: #262d37; } }
text { font: 13px system-ui, sans-serif; fill: var(--ink); text-anchor: middle; }
.title { font-weight: 600; } .soft { fill: var(--soft); font-size: 12px; }
.left { text-anchor: start; }
rect { stroke: var(--line); } .bare { stroke: none; }
path { stroke: var(--soft); fill: none; stroke-width: 1.5; }
.dashed { stroke-dasharray: 5 4; }
"""


class Picture:
    """Boxes, words and arrows, in pixels from the top left corner."""

    def __init__(self, width: int, height: int, title: str):
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'role="img" aria-label="{escape(title)}"><style>{STYLE}</style>'
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" '
            'markerWidth="7" markerHeight="7" orient="auto-start-reverse">'
            '<path d="M0 0 L8 4 L0 8 z" style="fill:var(--soft);stroke:none"/>'
            "</marker></defs>"
            f'<rect class="bare" width="{width}" height="{height}" rx="8" '
            'style="fill:var(--ground)"/>'
        ]

    def words(self, x: float, y: float, *lines: str, kind: str = "") -> None:
        """Lines of text around the height ``y``; the first may be a title."""
        top = y - 8.5 * (len(lines) - 1) + 4.5
        for i, line in enumerate(lines):
            self._parts.append(
                f'<text class="{kind}" x="{x:g}" y="{top + 17 * i:g}">'
                f"{escape(line)}</text>"
            )

    def box(self, x, y, w, h, *lines: str, fill="grey", kind: str = "") -> None:
        self._parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="5" '
            f'style="fill:var(--{fill})"/>'
        )
        self.words(x + w / 2, y + h / 2, *lines, kind=kind)

    def arrow(self, *points: tuple[float, float], both=False, dashed=False) -> None:
        route = " L".join(f"{x:g} {y:g}" for x, y in points)
        start = ' marker-start="url(#tip)"' if both else ""
        kind = ' class="dashed"' if dashed else ""
        self._parts.append(f'<path{kind} d="M{route}" marker-end="url(#tip)"{start}/>')

    def rule(self, *points: tuple[float, float]) -> None:
        route = " L".join(f"{x:g} {y:g}" for x, y in points)
        self._parts.append(f'<path class="dashed" d="M{route}"/>')

    def svg(self) -> str:
        return "\n".join([*self._parts, "</svg>", ""])


def architecture() -> Picture:
    p = Picture(780, 376, "From tables and a fleet to a plan, and from it to training")
    p.box(20, 20, 150, 54, "tables, features", "and a model", fill="blue")
    p.box(20, 88, 150, 42, "fleet of GPUs", fill="blue")
    p.box(20, 144, 150, 42, "skew of the ids", fill="blue")
    p.box(240, 70, 130, 70, "planner", "no GPU needed", fill="amber")
    p.box(440, 70, 110, 70, "plan", "(JSON, HTML)", fill="amber")
    p.box(620, 70, 140, 70, "mesh, storages,", "shardings", fill="amber")
    for y in (47, 109, 165):
        p.arrow((172, y), (205, y), (205, 105), (237, 105))
    p.arrow((372, 105), (437, 105))
    p.arrow((552, 105), (617, 105))
    p.box(20, 226, 150, 60, "data", "files or synthetic", fill="blue")
    p.box(240, 206, 520, 100, fill="green")
    p.words(500, 222, "train step: one XLA program on all devices", kind="title")
    names = ("route ids", "look up", "dense layers", "gradients", "update")
    for i, name in enumerate(names):
        p.box(254 + 101 * i, 242, 88, 46, name, fill="ground")
        if i:
            p.arrow((254 + 101 * i - 12, 265), (254 + 101 * i - 1, 265))
    p.arrow((172, 256), (237, 256))
    p.arrow((690, 142), (690, 203))
    p.words(205, 246, "batches", kind="soft")
    p.box(240, 340, 250, 26, "row stores: host memory, disk", fill="green")
    p.arrow((365, 308), (365, 338), both=True)
    p.words(395, 323, "rows", kind="soft")
    p.words(630, 353, "checkpoints · metrics · exports", kind="soft")
    p.arrow((630, 308), (630, 340))
    return p


def clusters() -> Picture:
    p = Picture(780, 300, "What travels between devices in DP, RB and UB")
    panels = (
        ("DP: data parallel", "every device has all rows", "green"),
        ("RB: reduction based", "the owner adds the rows of a bag", "blue"),
        ("UB: unique based", "the owner sends each row once", "amber"),
    )
    for i, (name, text, fill) in enumerate(panels):
        x = 15 + 255 * i
        p.words(x + 120, 24, name, kind="title")
        p.words(x + 120, 46, text, kind="soft")
        p.box(x, 66, 105, 146 if i == 0 else 170)
        p.box(x + 135, 66, 105, 146 if i == 0 else 170)
        p.words(x + 52, 82, "requester", kind="soft")
        p.words(x + 187, 82, "owner" if i else "other device", kind="soft")
        if i == 0:
            for inner in (x + 12, x + 147):
                p.box(inner, 96, 80, 60, "all rows", fill=fill)
            p.arrow((x + 90, 196), (x + 150, 196), both=True)
            for inner in (x + 52, x + 187):
                p.words(inner, 196, "gradients", kind="soft")
            p.words(x + 120, 228, "summed over all devices", kind="soft")
            continue
        p.box(x + 147, 96, 80, 40, "rows", fill=fill)
        p.words(x + 52, 118, "bag: 7, 7, 9")
        p.arrow((x + 94, 150), (x + 145, 150))
        p.words(x + 50, 150, "ids 7, 7, 9" if i == 1 else "ids 7, 9")
        p.arrow((x + 147, 180), (x + 96, 180))
        p.words(x + 187, 180, "7 + 7 + 9" if i == 1 else "rows 7, 9")
        p.arrow((x + 94, 212), (x + 145, 212))
        p.words(x + 50, 206, "gradient", kind="soft")
        p.words(x + 50, 220, "of the sum" if i == 1 else "of each row", kind="soft")
    captions = (
        ("no exchange in forward;", "memory on every device"),
        ("short answers where bags are long", "and ids repeat little"),
        ("few ids and rows where", "ids repeat much"),
    )
    for i, lines in enumerate(captions):
        p.words(135 + 255 * i, 268, *lines, kind="soft")
    return p


COLOURS = ("blue", "green", "amber", "red")


def shards() -> Picture:
    p = Picture(700, 270, "A table of 8 rows and 8 columns in 2 x 2 shards")
    p.words(150, 24, "table “user”: 2 row shards × 2 column shards", kind="title left")
    p.words(205, 48, "columns 0–3", kind="soft")
    p.words(305, 48, "columns 4–7", kind="soft")
    for row in range(8):
        p.words(112, 71 + 23 * row, f"row {row}", kind="soft")
        for column in range(2):
            index = 2 * (row % 2) + column
            p.box(155 + 100 * column, 60 + 23 * row, 98, 22, fill=COLOURS[index])
    for device in range(4):
        row, column = divmod(device, 2)
        y = 62 + 47 * device
        p.box(470, y, 200, 36, fill=COLOURS[device])
        p.words(
            570,
            y + 18,
            f"device {device}: rows {', '.join(str(r) for r in range(row, 8, 2))}",
            f"columns {4 * column}–{4 * column + 3}, shard ({row}, {column})",
            kind="soft",
        )
    p.arrow((372, 150), (455, 150))
    p.words(412, 138, "owners", kind="soft")
    return p


def storages() -> Picture:
    p = Picture(760, 332, "Storages: arrays with a block of slots for each device")
    p.words(440, 22, "array [devices × slots, width], one block a device", kind="title")
    for device in range(4):
        p.words(240 + 140 * device, 46, f"device {device}", kind="soft")
    held = {
        "dp_4": [["user 0"] * 4, ["user 1"] * 4],
        "rb_4": [
            ["user 2", "user 3", "user 4", "user 5"],
            ["user 6", "user 7", "user 8", "user 9"],
        ],
        "ub_4": [
            ["", "city 0", "city 1", ""],
            ["", "city 2", "city 3", ""],
            ["", "city 4", "city 5", ""],
        ],
    }
    y = 60
    for (name, slots), fill in zip(
        held.items(), ("green", "blue", "amber"), strict=True
    ):
        p.words(55, y + 14 * len(slots), name, kind="title")
        for slot, rows in enumerate(slots):
            p.words(125, y + 13 + 28 * slot, f"slot {slot}", kind="soft")
            for device, row in enumerate(rows):
                x = 175 + 140 * device
                p.box(x, y + 28 * slot, 130, 25, row, fill=fill if row else "ground")
        y += 28 * len(slots) + 14
    p.words(
        440, 312, "empty slots are padding, which the planner keeps small", kind="soft"
    )
    return p


def route() -> Picture:
    p = Picture(780, 250, "The route of a batch: from ids to slots at their owners")
    steps = (
        ("1 mask", "ids that are no", "row become padding"),
        ("2 find", "owner and slot", "by arithmetic"),
        ("3 bucket", "one bucket for", "each owner"),
        ("4 exchange", "all-to-all of", "the buckets"),
    )
    for i, (name, *text) in enumerate(steps):
        x = 20 + 190 * i
        p.box(x, 24, 165, 74, name, *text, fill="blue")
        if i:
            p.arrow((x - 23, 61), (x - 2, 61))
    p.words(102, 132, "user: 1, 5, 7")
    p.words(292, 124, "5 → device 3, slot 0", "7 → device 1, slot 1")
    for k, (owner, slot) in enumerate((("0", ""), ("1", "1"), ("2", ""), ("3", "0"))):
        x = 412 + 40 * k
        p.box(x, 116, 34, 24, slot, fill="amber" if slot else "ground")
        p.words(x + 17, 154, f"to {owner}", kind="soft")
    p.words(672, 126, "each owner holds", "the slots it must read")
    p.rule((20, 186), (760, 186))
    p.words(
        390,
        214,
        "Nothing up to here depends on parameters: a route may be made a step ahead.",
        "Buckets have a fixed capacity; a batch that needs more is replayed.",
        kind="soft",
    )
    return p


def step() -> Picture:
    p = Picture(780, 270, "One train step, forward above and backward below")
    p.words(60, 60, "forward", kind="title")
    p.words(60, 180, "backward", kind="title")
    forward = (
        ("route", "ids to owners", "blue"),
        ("look up", "rows, pooled", "green"),
        ("exchange", "sums or rows", "blue"),
        ("dense model", "loss", "amber"),
    )
    backward = (
        ("update rows", "once, in place", "green"),
        ("sum", "equal rows", "green"),
        ("exchange", "gradients", "blue"),
        ("dense model", "gradients", "amber"),
    )
    for i, (name, text, fill) in enumerate(forward):
        p.box(120 + 165 * i, 34, 140, 52, name, text, fill=fill)
        if i:
            p.arrow((120 + 165 * i - 23, 60), (120 + 165 * i - 2, 60))
    for i, (name, text, fill) in enumerate(backward):
        p.box(120 + 165 * i, 154, 140, 52, name, text, fill=fill)
        if i:
            p.arrow((120 + 165 * i - 2, 180), (120 + 165 * i - 23, 180))
    p.arrow((685, 88), (685, 151))
    p.arrow((190, 151), (190, 88), dashed=True)
    p.words(270, 120, "the next step", kind="soft")
    p.words(
        440,
        240,
        "One XLA program on every device. Blue travels between devices,",
        "green reads and writes tables, amber is the dense model.",
        kind="soft",
    )
    return p


def cost() -> Picture:
    p = Picture(760, 280, "A phase lasts as long as its fullest device")
    loads = {"exchange": (70, 52, 60, 66), "lookup": (34, 58, 30, 40)}
    x = 60
    for (name, heights), fill in zip(loads.items(), ("blue", "green"), strict=True):
        p.words(x + 90, 28, name, kind="title")
        for device, height in enumerate(heights):
            p.box(x + 45 * device, 170 - 1.6 * height, 38, 1.6 * height, fill=fill)
            p.words(x + 45 * device + 19, 186, f"{device}", kind="soft")
        top = 170 - 1.6 * max(heights)
        p.rule((x - 8, top), (x + 185, top))
        p.words(x + 90, 208, "device", kind="soft")
        p.words(x + 215, top, "largest", kind="soft")
        x += 265
    p.box(
        600,
        60,
        140,
        110,
        "price × largest",
        "summed over",
        "all phases",
        "= the step",
        fill="amber",
    )
    p.words(
        380,
        246,
        "Buffers are as large everywhere as on the fullest device, and exchanges wait",
        "for the slowest: so the planner makes the largest load small, not the mean.",
        kind="soft",
    )
    return p


def replay() -> Picture:
    p = Picture(760, 230, "A batch that overflows a buffer is replayed, not cut")
    p.words(75, 62, "batches", kind="title")
    for i, (name, fill) in enumerate(
        (
            ("41", "green"),
            ("42", "green"),
            ("43", "red"),
            ("43", "green"),
            ("44", "green"),
        )
    ):
        x = 130 + 125 * i
        p.box(x, 40, 84, 44, name, fill=fill)
        if i:
            p.arrow((x - 39, 62), (x - 2, 62))
    p.words(
        422,
        108,
        "needs 1,300 slots,",
        "the buffer has 1,024:",
        "nothing is applied",
        kind="soft",
    )
    p.box(470, 144, 150, 44, "compile for 1,625", "slots, once", fill="amber")
    p.arrow((422, 140), (422, 166), (467, 166))
    p.arrow((547, 142), (547, 88))
    p.words(
        240,
        160,
        "The result is that of a run",
        "whose buffers were large",
        "from the start.",
        kind="soft",
    )
    return p


PICTURES = (architecture, clusters, shards, storages, route, step, cost, replay)


def main() -> None:
    for draw in PICTURES:
        (FOLDER / f"{draw.__name__}.svg").write_text(draw().svg(), "utf-8")


if __name__ == "__main__":
    main()
