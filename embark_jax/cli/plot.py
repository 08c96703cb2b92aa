"""``embark plot``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from embark_jax._base.config import ConfigError, read_text
from embark_jax.cli.arguments import say
from embark_jax.plans.plan import Plan

FORMATS = (".png", ".svg", ".html")


def plot(
    workdirs: Annotated[
        list[Path],
        typer.Argument(
            metavar="WORKDIR...",
            help="Folders of one or several runs, or of searches.",
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            help="Picture to write, a .png or .svg; or a page, an .html, which also "
            "shows test metrics and plans."
        ),
    ],
) -> None:
    """Draw loss, AUC, throughput and fill of buffers, also of unfinished runs."""
    if out.suffix not in FORMATS:
        raise ConfigError(f"--out is {out}: must end in {' or '.join(FORMATS)}")
    from embark_jax.report.curves import run_curves
    from embark_jax.run.folder import RunFolder
    from embark_jax.run.logs import LogError, read_metrics

    runs = {}
    workdirs = [run for workdir in workdirs for run in _runs(workdir)]
    files = {workdir: RunFolder(workdir).read() for workdir in workdirs}
    for workdir in workdirs:
        records = read_metrics(files[workdir])
        if not records:
            raise LogError(f"{workdir}: has logged nothing yet")
        runs[str(workdir)] = records
    if out.suffix == ".html":
        from embark_jax.report.page import runs_page

        out.write_text(runs_page(runs, _plans(files)), "utf-8")
    else:
        run_curves(runs).savefig(out)
    say(f"plot written to {out}")


def _runs(workdir: Path) -> list[Path]:
    """Returns the folders of the runs of a search, else the folder."""
    return sorted(log.parent for log in workdir.glob("*/metrics.jsonl")) or [workdir]


def _plans(files: Mapping[Path, Path]) -> dict[str, str]:
    """Returns HTML of the runs' plans, folded, where a run has one in its files."""
    from embark_jax.report.page import plan_html

    plans = {}
    for workdir, folder in files.items():
        if (path := folder / "plan.json").exists():
            try:
                plans[str(workdir)] = plan_html(Plan.from_json(read_text(path)))
            except ValueError as error:
                raise ConfigError(f"{path}: {error}") from None
    return plans
