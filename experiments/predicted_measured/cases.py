"""Cases: what others measured, each with its address, and which are kept aside.

A file of ``measured/`` holds the cases of one group; see README.md.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import spearmanr

from embark_jax._base import yaml_text
from embark_jax.plans import fleet

FOLDER = Path(__file__).parent
SLINGSHOT = "alps.yaml", "kestrel.yaml"
_load = functools.cache(fleet.load)


class Constants(NamedTuple):
    """What programs achieve on GPUs up to Hopper's, on Blackwell's, and on Hopper's
    where Slingshot joins nodes."""

    hopper: fleet.Efficiency
    blackwell: fleet.Efficiency
    slingshot: fleet.Efficiency

    def for_fleet(self, source: str) -> fleet.Efficiency:
        """Returns those of a fleet, by its name or file."""
        if source in SLINGSHOT:
            return self.slingshot
        return self.blackwell if "b200" in source or "b300" in source else self.hopper


@dataclasses.dataclass(frozen=True)
class Case:
    """A measured figure beside the predicted one.

    Attributes:
      group: the kind of figure, such as "systems".
      name: name of the case, unique in all groups.
      unit: unit of both figures.
      measured, predicted: the figures.
      source: address of the file that states the measured one.
    """

    group: str
    name: str
    unit: str
    measured: float
    predicted: float
    source: str

    @property
    def ratio(self) -> float:
        return self.predicted / self.measured

    @property
    def kept_aside(self) -> bool:
        return kept_aside(self.name)


def kept_aside(name: str) -> bool:
    """Returns whether a case is scored last: about a third, chosen by a hash of the
    name before anything was predicted."""
    return int(hashlib.sha256(name.encode()).hexdigest(), 16) % 3 == 0


def measured(group: str) -> Iterator[tuple[dict[str, Any], str]]:
    """Yields the records of a group's file, each with the address of its source."""
    content = json.loads((FOLDER / "measured" / f"{group}.json").read_text())
    for record in content["cases"]:
        yield record, address(content["sources"][record["source"]], record["path"])


def data_sheets() -> Constants:
    """Returns the constants by data sheets and published figures, nothing fitted."""
    text = (FOLDER / "fleets" / "data_sheets.yaml").read_text()
    sheets = fleet.Efficiency(**yaml_text.parse(text))  # pyright: ignore
    return Constants(sheets, sheets, sheets)


def fitted() -> Constants:
    """Returns the fitted constants, as the files of fleets have them."""
    files = "dgx-h100", "dgx-b200", str(FOLDER / "fleets" / "alps.yaml")
    return Constants(*(_load(source).efficiency for source in files))


def fleet_of(record: Mapping[str, Any], constants: Constants) -> fleet.Fleet:
    """Returns the machines of a record, by name or from a file of ``fleets/``, with
    constants but for what the record says of its own."""
    source = record["fleet"]
    efficiency = constants.for_fleet(source)
    if source.endswith(".yaml"):
        source = str(FOLDER / "fleets" / source)
    machines = _load(source, record["nodes"], record["gpus_per_node"])
    message_us = record.get("message_us", efficiency.message_us)
    return dataclasses.replace(
        machines,
        efficiency=dataclasses.replace(efficiency, message_us=message_us),
        sharp=record.get("sharp", machines.sharp),
    )


def address(source: Mapping[str, str], path: str) -> str:
    """Returns the address of a file or folder in a public repository."""
    kind = "blob" if Path(path).suffix else "tree"
    return f"https://github.com/{source['repository']}/{kind}/{source['commit']}/{path}"


def score(cases: Sequence[Case]) -> dict[str, Any]:
    """Returns number, mean absolute percentage error, mean of the ratio's logarithm as
    a factor, and rank correlation (Spearman)."""
    ratios = np.array([case.ratio for case in cases])
    measured_figures = [case.measured for case in cases]
    predicted_figures = [case.predicted for case in cases]
    rank = None
    if len(cases) > 2:
        rank = float(spearmanr(measured_figures, predicted_figures)[0])  # pyright: ignore
    return {
        "cases": len(cases),
        "mape": float(np.abs(ratios - 1).mean()),
        "bias": float(np.exp(np.log(ratios).mean())),
        "rank_correlation": rank,
    }
