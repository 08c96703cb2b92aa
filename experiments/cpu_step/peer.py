"""The peers' side: FBGEMM's operator, and DLRM-DCNv2 in TorchRec, fused and sharded.

Prints times as JSON. Initial weights are random, ids and update rules are those of
embark_jax's side. See README.md for the environment.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
import warnings
from collections.abc import Callable

import numpy as np
import torch
from timing import OtherCores, median_ms

DIM, BOTTOM, TOP, CROSS_LAYERS, CROSS_RANK = 64, [512, 256, 64], [512, 256, 1], 3, 64
LEARNING_RATE, EPS = 1e-3, 1e-8


class Inputs:
    """Batches as TorchRec takes them.

    Attributes:
      rows: of each table.
      batches: ``(dense, ids of all bags, lengths of all bags, labels)``.
    """

    def __init__(self, path: str):
        with np.load(path) as file:
            self.rows = file["rows"].tolist()
            self.batches = []
            for i in range(int(file["batches"])):
                columns = [file[f"{i}.f{t}"] for t in range(len(self.rows))]
                ids = np.concatenate([c.reshape(-1) for c in columns])
                lengths = np.concatenate([np.full(len(c), c.shape[1]) for c in columns])
                parts = file[f"{i}.dense"], ids.astype(np.int64), lengths
                parts = *parts, file[f"{i}.labels"]
                self.batches.append(tuple(map(torch.from_numpy, parts)))


def operator(inputs: Inputs) -> dict[str, float]:
    """FBGEMM's table batched embedding alone, with its fused row-wise Adagrad."""
    from fbgemm_gpu import split_table_batched_embeddings_ops_training as ops
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation

    place = EmbeddingLocation.HOST, ops.ComputeDevice.CPU
    tables = ops.SplitTableBatchedEmbeddingBagsCodegen(
        [(rows, DIM, *place) for rows in inputs.rows],
        optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD,
        learning_rate=LEARNING_RATE,
        eps=EPS,
    )
    for rows, weight in zip(inputs.rows, tables.split_embedding_weights(), strict=True):
        weight.data.uniform_(-(rows**-0.5), rows**-0.5)
    batches = [
        (ids, torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]))
        for _, ids, lengths, _ in inputs.batches
    ]

    def lookup(batch):
        with torch.no_grad():
            return tables(*batch)

    def lookup_and_update(batch):
        out = tables(*batch)
        out.backward(out.detach())

    return {
        "lookup_ms": median_ms(lookup, batches),
        "lookup_and_update_ms": median_ms(lookup_and_update, batches),
    }


def train(inputs: Inputs, shard: Callable) -> dict[str, float]:
    """Steps of DLRM_DCN with a fused row-wise Adagrad of the tables.

    Args:
      shard: makes of the tables' configs what holds them, and of the model what is run.
    """
    import torchrec
    from torchrec.models.dlrm import DLRM_DCN

    configs = [
        torchrec.EmbeddingBagConfig(
            name=f"t{i}",
            embedding_dim=DIM,
            num_embeddings=rows,
            feature_names=[f"f{i}"],
        )
        for i, rows in enumerate(inputs.rows)
    ]
    tables, distribute = shard(configs)
    dense_features = inputs.batches[0][0].shape[1]
    shape = dense_features, BOTTOM, TOP, CROSS_LAYERS, CROSS_RANK
    net = DLRM_DCN(tables, *shape)
    model = distribute(net)
    parts = net.dense_arch, net.inter_arch, net.over_arch
    optimizer = torch.optim.Adagrad(
        [p for part in parts for p in part.parameters()],
        lr=LEARNING_RATE,
        eps=EPS,
        fused=True,
    )
    keys = [f"f{i}" for i in range(len(inputs.rows))]
    loss_of = torch.nn.functional.binary_cross_entropy_with_logits

    def step(batch):
        dense, ids, lengths, labels = batch
        sparse = torchrec.KeyedJaggedTensor(keys=keys, values=ids, lengths=lengths)
        loss = loss_of(model(dense, sparse).squeeze(-1), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return {"step_ms": median_ms(step, inputs.batches)}


def fused(configs):
    import torchrec
    from torchrec.modules.fused_embedding_modules import FusedEmbeddingBagCollection

    kwargs = {"lr": LEARNING_RATE, "eps": EPS}
    rule = torchrec.optim.RowWiseAdagrad
    cpu = torch.device("cpu")
    tables = FusedEmbeddingBagCollection(configs, rule, kwargs, device=cpu)
    return tables, lambda net: net


def model_parallel(configs):
    import torchrec
    from torch.distributed.optim import _apply_optimizer_in_backward
    from torchrec.distributed import DistributedModelParallel
    from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
    from torchrec.distributed.sharding_plan import get_default_sharders

    tables = torchrec.EmbeddingBagCollection(
        tables=configs, device=torch.device("meta")
    )
    kwargs = {"lr": LEARNING_RATE, "eps": EPS}
    rule = torchrec.optim.RowWiseAdagrad
    _apply_optimizer_in_backward(rule, tables.parameters(), kwargs)

    def distribute(net):
        topology = Topology(world_size=1, local_world_size=1, compute_device="cpu")
        sharders, group = get_default_sharders(), torch.distributed.group.WORLD
        planner = EmbeddingShardingPlanner(topology=topology, batch_size=2048)
        plan = planner.collective_plan(net, sharders, group)
        return DistributedModelParallel(
            net, device=torch.device("cpu"), plan=plan, sharders=sharders
        )

    return tables, distribute


def main(path: str) -> None:
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(os.cpu_count() or 1)
    torch.manual_seed(0)
    inputs = Inputs(path)
    runs = {
        "fbgemm": lambda: operator(inputs),
        "torchrec_fused": lambda: train(inputs, fused),
        "torchrec_dmp": lambda: train(inputs, model_parallel),
    }
    with tempfile.TemporaryDirectory() as folder:
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{folder}/init", rank=0, world_size=1
        )
        found = {}
        for name, run in runs.items():
            clock = OtherCores()
            found[name] = run()
            found[name]["other_cores"] = clock.read()
        torch.distributed.destroy_process_group()
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
