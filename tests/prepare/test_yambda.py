"""Yambda: generated files, samples and histories against loops over the raw events."""

import dataclasses
import hashlib
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from embark_jax.data.batch import DataError
from embark_jax.data.event_lists import Histories
from embark_jax.data.prepared import PreparedData
from embark_jax.data.windows import WindowsData
from embark_jax.prepare import histories, yambda
from embark_jax.prepare.run import prepare
from tests import yambda as yambda_files
from tests.prepare.raw_files import samples

USERS = 23
HISTORY = {"longest": 9, "least": 5, "scan": 40}


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    folder = tmp_path_factory.mktemp("yambda")
    yambda_files.write(folder, USERS, items=600, albums=150, artists=40, events=60)
    return folder


def prepared(raw, out, **history):
    recipe = yambda.yambda(raw)
    history = yambda.HISTORY.model_copy(update=HISTORY | history)
    crosses = dict.fromkeys(yambda.CROSSES, 97)
    options = recipe.usual.model_copy(update={"hash_columns": crosses})
    recipe = dataclasses.replace(recipe, history=history)
    return prepare(recipe, out, options, {})[0]


def expected_samples(raw):
    """Yields label, ids of the sample, and its history, by user and time."""
    table = pq.read_table(raw / "flat/50m/multi_event.parquet").to_pylist()
    sides = {}
    for name in ("artist", "album"):
        pairs = pq.read_table(raw / f"{name}_item_mapping.parquet").to_pylist()
        sides[name] = {pair["item_id"]: pair[f"{name}_id"] for pair in pairs}
    for user in range(USERS):
        events = sorted(
            (e for e in table if e["uid"] == user), key=lambda e: e["timestamp"]
        )
        pooled = []
        for number, event in enumerate(events):
            is_listen = event["event_type"] == "listen"
            is_long = is_listen and event["played_ratio_pct"] >= 50
            if is_listen and number >= 5:
                kept = []
                for action in range(3):
                    kept += [e for e in pooled[-40:] if e[2] == action][-3:]
                seen = sorted(kept, key=lambda e: e[3])
                yield event, is_long, seen, sides
            if event["event_type"] in ("listen", "like"):
                action = 1 if event["event_type"] == "like" else 0 if is_long else 2
                pooled.append((event["item_id"], event["timestamp"], action, number))


def test_samples_and_histories_are_those_of_a_loop_over_events(
    raw, tmp_path, monkeypatch
):
    monkeypatch.setattr(histories, "FILE_EVENTS", 400)
    manifest = prepared(raw, tmp_path / "out")
    assert manifest.events is not None
    assert len(manifest.events.files) > 1
    data = PreparedData(tmp_path / "out", seed=None)
    (batch,) = data.in_file_order("train", data.train_samples)
    found, by_user = samples(data, "train"), {}
    for row, sample in enumerate(found):
        by_user.setdefault(sample["uid"], []).append(row)
    number = dict.fromkeys(by_user, 0)
    for event, is_long, seen, sides in expected_samples(raw):
        # Windows are in order, and in a window a user's samples are.
        row = by_user[event["uid"]][number[event["uid"]]]
        number[event["uid"]] += 1
        sample, items = found[row], [e[0] for e in seen]
        assert sample["label"] == is_long
        assert sample["item"] == event["item_id"]
        assert sample["album"] == sides["album"].get(event["item_id"])
        assert (sample["time"], sample["action"]) == (0, 3)
        assert sample["past_item"] == items
        assert sample["past_artist"] == [sides["artist"][item] for item in items]
        assert sample["past_action"] == [e[2] for e in seen]
        asked = seen[-1][1]
        buckets = [int(((asked - e[1]) / 60) ** 0.5) for e in seen]
        assert sample["past_time"] == buckets
        # Padding is behind the events.
        padded = np.asarray(batch.ids["past_item"])[row]
        assert (padded >= 0).tolist() == [True] * len(seen) + [False] * (9 - len(seen))
        last_pooled = asked // 3600 % 24 / 24
        assert batch.dense[row, 0] == pytest.approx(np.cos(2 * np.pi * last_pooled))
        pair = f"{event['uid']}\x1f{event['is_organic']}"
        digest = hashlib.md5(pair.encode()).digest()[8:]
        cross = 1 + int.from_bytes(digest, "little") % 96
        assert batch.ids["user_x_is_organic"][row, 0] == cross
    assert sum(number.values()) == data.train_samples == manifest.rows("train")


def test_windows_are_days_whose_samples_keep_their_order(raw, tmp_path):
    manifest = prepared(raw, tmp_path / "out")
    assert manifest.windows == [day * 86_400 for day in range(len(manifest.windows))]
    windows = WindowsData(tmp_path / "out", seed=None)
    first = windows.open(windows.windows[1])
    users = first.train_batch(0, first.train_samples).ids["uid"][:, 0]
    assert np.count_nonzero(np.diff(users)) == len(np.unique(users)) - 1
    again = first.train_batch(1, first.train_samples)
    np.testing.assert_array_equal(again.ids["uid"][:, 0], users)


def test_preparing_again_gives_the_same_and_finds_damage(raw, tmp_path):
    out = tmp_path / "out"
    manifest = prepared(raw, out)
    again = prepared(raw, tmp_path / "again")
    assert manifest.digest() == again.digest()
    assert manifest.events is not None
    events = out / manifest.events.files[0].file
    events.write_bytes(events.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"events/000000.arrow: has .* bytes"):
        PreparedData(out)


def test_bad_files_are_named(raw, tmp_path):
    with pytest.raises(DataError, match="has no size in flat/"):
        prepared(tmp_path, tmp_path / "out")
    path = tmp_path / "flat/50m/multi_event.parquet"
    path.parent.mkdir(parents=True)
    table = pq.read_table(raw / "flat/50m/multi_event.parquet")
    pq.write_table(table, path)
    with pytest.raises(DataError, match=r"artist_item_mapping.parquet: no such file"):
        prepared(tmp_path, tmp_path / "out")
    for name in ("artist", "album"):
        mapping = f"{name}_item_mapping.parquet"
        (tmp_path / mapping).write_bytes((raw / mapping).read_bytes())
    kinds = table["event_type"].to_pylist()
    kinds[7] = "shared"
    number = table.column_names.index("event_type")
    pq.write_table(table.set_column(number, "event_type", pa.array(kinds)), path)
    with pytest.raises(
        DataError, match="row 7: column event_type: value is 'shared', must be"
    ):
        prepared(tmp_path, tmp_path / "out")
    pq.write_table(table.drop(["is_organic"]), path)
    with pytest.raises(DataError, match="has no column 'is_organic'"):
        prepared(tmp_path, tmp_path / "other")
    with pytest.raises(DataError, match="no sample is in the training split"):
        prepared(raw, tmp_path / "none", least=10_000)


@pytest.mark.parametrize("value", [-1, 2**31, None])
@pytest.mark.parametrize("column", ["uid", "item_id", "album_id"])
def test_ids_are_integers_of_31_bits(raw, tmp_path, column, value):
    folder = tmp_path / "raw"
    shutil.copytree(raw, folder)
    name = "album_item_mapping" if column == "album_id" else "flat/50m/multi_event"
    path = folder / f"{name}.parquet"
    table = pq.read_table(path)
    values = [value, *table[column].to_pylist()[1:]]
    number = table.column_names.index(column)
    changed = table.set_column(number, column, pa.array(values, pa.int64()))
    pq.write_table(changed, path)
    with pytest.raises(DataError, match=f"{path.name}, row 0: column {column}: "):
        prepared(folder, tmp_path / "out")


def test_histories_that_are_not_there_are_refused(raw, tmp_path):
    manifest = prepared(raw, tmp_path / "out")
    assert manifest.events is not None
    histories = Histories(tmp_path / "out", manifest.events)
    rows = manifest.events.files[0].rows
    for wrong in ([-1, 0, 2], [9, 0, 2], [0, -3, 2], [0, 2, rows + 1], [0, 5, 2]):
        with pytest.raises(DataError, match="which are not there"):
            histories.of(np.array([wrong]), map)
    path = tmp_path / "out" / manifest.events.files[0].file
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"000000.arrow: is not as it was written"):
        Histories(tmp_path / "out", manifest.events).of(np.array([[0, 0, 2]]), map)
