"""Fits the constants that nobody published to two thirds of the cases.

    python -m experiments.predicted_measured.fit

prints what it found; who believes it writes it to configs/fleets/efficiency/gpu.yaml.
Least squares of the ratio's logarithm, beyond a fifth of absolute value (``soft_l1``),
so that a machine out of order moves little. Groups weigh alike. It begins at the data
sheets; what a case held out says is never seen.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
from scipy.optimize import least_squares

from embark_jax.plans.fleet import Efficiency, Way
from experiments.predicted_measured.cases import data_sheets, score
from experiments.predicted_measured.run import GROUPS

STAGES = {
    ("collectives",): ("link", "network", "message_us", "hops", "switches"),
    ("systems", "kernels", "our H200", "collectives"): (
        "memory",
        "ids",
        "flops",
        "kernel_us",
        "host",
        "message_us",
    ),
    ("our H200",): ("xla_ids",),
}
"""Groups, and what is fitted to them with what is found so far: fields of
``Efficiency``; ``hops``, a factor of the hops' latency of ways that are not for short
messages; and ``switches``, of the bandwidth of switches that add."""
WIDE = 0.2
"""Logarithm of a ratio beyond which its absolute value counts, not its square."""
SHORT_US = 7
"""Protocol LL is launched in less."""


def changed(efficiency: Efficiency, factors: Mapping[str, float]) -> Efficiency:
    """Returns the constants, some of them times a factor."""
    rest = dict(factors)
    hops, switches = rest.pop("hops", 1.0), rest.pop("switches", 1.0)

    def way(each: Way) -> Way:
        slow = 1.0 if 0 < each.launch_us < SHORT_US else hops
        adds = switches if each.algorithm in ("node", "network") else 1.0
        return dataclasses.replace(
            each,
            node_hop_us=each.node_hop_us * slow,
            network_hop_us=each.network_hop_us * slow,
            node_share=each.node_share * adds,
        )

    fields = {name: getattr(efficiency, name) * by for name, by in rest.items()}
    ways = tuple(map(way, efficiency.ways))
    return dataclasses.replace(efficiency, **fields, ways=ways)


def fitted(
    efficiency: Efficiency, groups: Sequence[str], names: Sequence[str]
) -> Efficiency:
    """Returns the constants with those of some names fitted to some groups."""

    def at(logs: np.ndarray) -> Efficiency:
        return changed(efficiency, dict(zip(names, np.exp(logs).tolist(), strict=True)))

    def errors(logs: np.ndarray) -> np.ndarray:
        cases = [case for group in groups for case in GROUPS[group](at(logs))]
        seen = [case for case in cases if not case.kept_aside]
        number = {group: sum(case.group == group for case in seen) for group in groups}
        return np.array([np.log(c.ratio) / number[c.group] ** 0.5 for c in seen])

    begin, scale = np.zeros(len(names)), WIDE / 5
    found = least_squares(
        errors, begin, loss="soft_l1", f_scale=scale, diff_step=1e-2, max_nfev=15
    )
    return at(found.x)


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    sheet = efficiency = data_sheets()
    for groups, names in STAGES.items():
        efficiency = fitted(efficiency, groups, names)
        for name in names:
            if hasattr(sheet, name):
                before, after = (getattr(each, name) for each in (sheet, efficiency))
                print(f"{name}: {after:.3g} # {before:.3g}")
        print(f"{groups}: {score([c for g in groups for c in GROUPS[g](efficiency)])}")
    for way in efficiency.ways:
        print(way)


if __name__ == "__main__":
    main()
