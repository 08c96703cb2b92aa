"""Screenshots of the pages that commands write: run ``python docs/screenshots.py``.

It needs Chromium, trains the quickstart (a minute), and looks at both pages in a wide
and a narrow window, light and dark. The two that the documentation shows go to
``docs/pages/images``, the others to ``build/screenshots``.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

DOCS = Path(__file__).parent
SHOWN, OTHERS = DOCS / "pages" / "images", DOCS.parent / "build" / "screenshots"
PIXELS = {"wide": (1280, 900), "narrow": (480, 900)}
SCHEMES = {"dark": 0, "light": 1}  # as Chromium numbers them
OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--hide-scrollbars",
    "--disable-background-networking",
    "--disable-sync",
    "--no-first-run",
)


def embark(*args) -> None:
    subprocess.run(["embark", *map(str, args)], check=True)


def take(browser: str, page: Path, out: Path, width: str, scheme: str) -> None:
    with tempfile.TemporaryDirectory() as profile:
        subprocess.run(
            [
                browser,
                *OPTIONS,
                f"--user-data-dir={profile}",
                "--window-size={},{}".format(*PIXELS[width]),
                f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}",
                f"--screenshot={out}",
                page.as_uri(),
            ],
            check=True,
        )


def main() -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("neither chromium nor google-chrome is on the PATH: install one")
    OTHERS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        plan, run = Path(folder, "plan.html"), Path(folder, "quickstart")
        tables = ("t180", "fleet=dgx-h100", "mesh.nodes=16")
        embark("plan", *tables, "--html", plan)
        embark("train", DOCS.parent / "configs/quickstart.yaml", "--workdir", run)
        for name, page in {"plan": plan, "report": run / "report.html"}.items():
            for width in PIXELS:
                for scheme in SCHEMES:
                    out = OTHERS / f"{name}_{width}_{scheme}.png"
                    take(browser, page, out, width, scheme)
            shutil.copyfile(OTHERS / f"{name}_wide_light.png", SHOWN / f"{name}.png")


if __name__ == "__main__":
    main()
