"""Models of histories whose rows begin as zeros."""

from tests import runs

CONFIG = """\
data: {kind: synthetic, dense_features: 1, train_samples: 64, test_samples: 32}
model: {kind: MODEL, history: {past: now}OPTIONS}
embedding:
  dim: 8
  tables: {past: {rows: 50, init_scale: 0.0}, now: {rows: 50}}
  features: {past: {hotness: 3, pooling: none}, now: {}}
  optimizer: {kind: sgd, learning_rate: 1.0}
train: {batch_size: 32, steps: 1}
mesh: {nodes: 1, gpus_per_node: 2}
"""


KINDS = {
    "din": "",
    "hstu": "",
    "tbsm": ", bottom: [8]",
    "next_item": "",
    "dlrm_v4": ", content: past",
}
"""Further options of each model."""


def write_config(kind, folder):
    text = CONFIG.replace("MODEL", kind).replace("OPTIONS", KINDS[kind])
    return runs.write_config(folder, text)
