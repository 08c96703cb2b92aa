"""The one recipe that both frameworks follow, and where results lie. Imports nothing of
either."""

from __future__ import annotations

import json
from pathlib import Path

FOLDER = Path(__file__).parent
RESULTS = FOLDER / "results.json"
SEEDS = (0, 1, 2, 3, 4)
BATCH = 2048
STEPS_AN_EPOCH = 80_000 // BATCH
EPOCHS = 20
"""Most epochs; training ends earlier, when the validation AUC no longer improves."""
PATIENCE = 2
RATE = 3e-3
RATE_FACTOR = 0.1
"""Factor of the learning rate after each epoch without improvement."""
CLIP_NORM = 10.0
DIM = 16
INITIAL_DEVIATION = 1e-4
DROPOUT = 0.2
HISTORY = 10
"""Films that DIN sees of those that the user rated before."""
HIDDEN = (64, 64)
MODELS = ("dcnv2", "deepfm", "dlrm", "autoint", "finalmlp", "din")
SPEED = FOLDER / "speed.json"
SPEED_EPOCHS = 3
ARRAYS = Path("movielens_100k.npz")
"""The samples, which ``ours.py --arrays`` writes for the peer."""


def results(path: Path = RESULTS) -> dict:
    """All results in a file so far, by ``framework/model/seed``."""
    return json.loads(path.read_text()) if path.exists() else {}


def keep(name: str, record: dict[str, float], path: Path = RESULTS) -> None:
    """Adds a result to a file."""
    found = results(path) | {name: record}
    path.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
