"""Events of users in the layout of Yambda's files, drawn at random."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

TYPES = np.array(["listen", "like", "dislike", "unlike", "undislike"])


def write(
    folder: Path,
    users: int,
    items: int,
    albums: int,
    artists: int,
    events: int,
    days: int = 4,
    seed: int = 0,
) -> None:
    """Writes the three files: ``events`` of each user in ``days``, in the order of user
    and time, times being multiples of 5 seconds. Some items are played through more
    often, and some have no album."""
    rng = np.random.default_rng(seed)
    item = np.arange(items, dtype=np.uint32)
    has_album = rng.random(items) < 0.9
    for name, ids, of in (
        ("artist", item % artists, item),
        ("album", item[has_album] % albums, item[has_album]),
    ):
        columns = {f"{name}_id": ids.astype(np.uint32), "item_id": of}
        pq.write_table(pa.table(columns), folder / f"{name}_item_mapping.parquet")
    total = users * events
    uid = np.repeat(np.arange(users, dtype=np.uint32), events)
    time = (rng.integers(days * 17_280, size=total) * 5).astype(np.uint32)
    time = time[np.lexsort([time, uid])]
    chosen = (items * rng.random(total) ** 2).astype(np.uint32)
    kind = rng.choice(5, total, p=[0.9, 0.06, 0.02, 0.01, 0.01])
    is_long = rng.random(total) < 0.2 + 0.6 * (chosen % 3 > 0)
    ratio = rng.integers(50, size=total) + 50 * is_long
    table = pa.table(
        {
            "uid": uid,
            "timestamp": time,
            "item_id": chosen,
            "is_organic": rng.integers(2, size=total).astype(np.uint8),
            "event_type": TYPES[kind].tolist(),
            "played_ratio_pct": pa.array(ratio.astype(np.uint16), mask=kind > 0),
        }
    )
    path = folder / "flat/50m/multi_event.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(table, path, row_group_size=max(1, total // 3))
