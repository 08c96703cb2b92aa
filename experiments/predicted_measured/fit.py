"""Fits the constants that nobody published to two thirds of the cases.

    python -m experiments.predicted_measured.fit

prints what it found; who believes it writes it to configs/fleets/efficiency/ and
fleets/slingshot.yaml.
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

from embark_jax.plans.fleet import Way
from experiments.predicted_measured.cases import Constants, data_sheets, score
from experiments.predicted_measured.run import GROUPS

STAGES = {
    ("collectives",): (
        "link",
        "network",
        "message_us",
        "node hops",
        "switch latency",
        "switch bandwidth",
        "slingshot network hops",
        "slingshot short messages",
    ),
    ("systems", "kernels", "our H200", "collectives"): (
        "memory",
        "ids",
        "xla_ids",
        "flops",
        "kernel_us",
        "host",
        "message_us",
        "blackwell flops",
    ),
}
"""Groups, and what is fitted to them with what is found so far: factors of fields of
``Efficiency``; of the latency of ``hops`` of rings and trees that are not for short
messages; of the two constants of switches that add; and of the bandwidth of ``short
messages`` between nodes. Each is for all kinds of ``Constants``, or one."""
WIDE = 0.2
"""Logarithm of a ratio beyond which its absolute value counts, not its square."""
SHORT_US = 7
"""Protocol LL, for short messages, is launched in less."""


def changed_way(way: Way, name: str, by: float) -> Way:
    """Returns a way with one of its constants times a factor."""
    adds = way.algorithm in ("node", "network")
    is_short = not adds and way.launch_us < SHORT_US
    match name:
        case "node hops" if not adds and not is_short:
            field = "node_hop_us"
        case "network hops" if not adds and not is_short:
            field = "network_hop_us"
        case "switch latency" if adds:
            field = "node_hop_us"
        case "switch bandwidth" if adds:
            field = "node_share"
        case "short messages" if is_short:
            field = "network_bytes_per_s"
        case _:
            return way
    return dataclasses.replace(way, **{field: getattr(way, field) * by})


def changed(constants: Constants, factors: Mapping[str, float]) -> Constants:
    """Returns the constants, some of them times a factor."""
    kinds = constants._asdict()
    for factor, by in factors.items():
        kind, _, name = factor.partition(" ")
        chosen = [kind] if kind in kinds else kinds
        name = name if kind in kinds else factor
        for each in chosen:
            before = kinds[each]
            if hasattr(before, name):
                changes = {name: getattr(before, name) * by}
            else:
                ways = tuple(changed_way(way, name, by) for way in before.ways)
                changes = {"ways": ways}
            kinds[each] = dataclasses.replace(before, **changes)
    return Constants(**kinds)


def fit(
    constants: Constants, groups: Sequence[str], names: Sequence[str]
) -> tuple[Constants, dict[str, float]]:
    """Returns the constants with those of some names fitted to some groups, and the
    factors."""

    def factors(logs: np.ndarray) -> dict[str, float]:
        return dict(zip(names, np.exp(logs).tolist(), strict=True))

    def errors(logs: np.ndarray) -> np.ndarray:
        at = changed(constants, factors(logs))
        cases = [case for group in groups for case in GROUPS[group](at)]
        seen = [case for case in cases if not case.kept_aside]
        number = {group: sum(case.group == group for case in seen) for group in groups}
        return np.array([np.log(c.ratio) / number[c.group] ** 0.5 for c in seen])

    begin, scale = np.zeros(len(names)), WIDE / 5
    found = least_squares(
        errors, begin, loss="soft_l1", f_scale=scale, diff_step=1e-2, max_nfev=15
    )
    return changed(constants, factors(found.x)), factors(found.x)


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    constants = data_sheets()
    for groups, names in STAGES.items():
        constants, factors = fit(constants, groups, names)
        print({name: round(by, 3) for name, by in factors.items()})
        print(f"{groups}: {score([c for g in groups for c in GROUPS[g](constants)])}")
    for kind, efficiency in constants._asdict().items():
        print(kind)
        for name, value in dataclasses.asdict(efficiency).items():
            if name != "ways":
                print(f"{name}: {value and float(f'{value:.3g}')}")
        for way in efficiency.ways:
            print(way)


if __name__ == "__main__":
    main()
