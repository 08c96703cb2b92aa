"""Asks TorchRec's planner for a plan; runs in an environment that has TorchRec.

    python ask_torchrec.py < request.json > answer.json

Needs torch and torchrec, no GPU, and nothing of embark_jax: `run.py` writes
the request and reads the answer. In the answer, a shard is the list of its device, its
first row and column, and how many of each it has.
"""

import json
import logging
import sys
import time
import warnings

import torch
import torchrec
from torch.distributed.optim import _apply_optimizer_in_backward
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import (
    EmbeddingShardingPlanner,
    ParameterConstraints,
    Topology,
)
from torchrec.distributed.planner.types import PlannerError

OPTIMIZERS = {
    "rowwise_adagrad": torchrec.optim.RowWiseAdagrad,
    "adagrad": torch.optim.Adagrad,
    "sgd": torch.optim.SGD,
}
IN_DEVICE_MEMORY = ["fused", "dense"]
"""Kernels that keep tables there, as we do; dense is for data parallel."""


def main():
    request = json.load(sys.stdin)
    collection = torchrec.EmbeddingBagCollection(
        device=torch.device("meta"),
        tables=[
            torchrec.EmbeddingBagConfig(
                name=table["name"],
                num_embeddings=table["rows"],
                embedding_dim=table["dim"],
                feature_names=[f"{table['name']}_{k}" for k in range(len(hotness))],
            )
            for table in request["tables"]
            for hotness in [table["hotness"]]
        ],
    )
    optimizer = OPTIMIZERS[request["optimizer"]]  # only its state's size matters
    _apply_optimizer_in_backward(optimizer, collection.parameters(), {"lr": 0.01})
    planner = EmbeddingShardingPlanner(
        # Its bandwidths are in bytes per ms.
        topology=Topology(
            world_size=request["devices"],
            local_world_size=request["gpus_per_node"],
            compute_device="cuda",
            hbm_cap=int(request["memory_bytes"]),
            hbm_mem_bw=request["memory_bytes_per_s"] / 1e3,
            intra_host_bw=request["node_link_bytes_per_s"] / 1e3,
            inter_host_bw=request["network_bytes_per_s"] / 1e3,
        ),
        batch_size=request["device_batch"],
        constraints={
            table["name"]: ParameterConstraints(
                pooling_factors=[float(hotness) for hotness in table["hotness"]],
                compute_kernels=IN_DEVICE_MEMORY,
            )
            for table in request["tables"]
        },
        stats=[],
    )
    answer = {
        "torchrec": torchrec.__version__,
        "torch": torch.__version__,
        "memory_bytes": request["memory_bytes"],
    }
    wall, cpu = time.perf_counter(), time.process_time()
    try:
        planner.plan(collection, [EmbeddingBagCollectionSharder()])
    except PlannerError as error:
        answer["error"] = str(error).strip().splitlines()[0]
    answer["wall_s"] = time.perf_counter() - wall
    answer["cpu_s"] = time.process_time() - cpu
    if "error" not in answer:
        answer["tables"] = {
            option.name: {
                "sharding": option.sharding_type,
                "shards": [
                    [shard.rank, *shard.offset, *shard.size]
                    for shard in option.shards
                    if option.sharding_type != "data_parallel"
                ],
            }
            for option in planner._best_plan
        }
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    logging.disable(logging.ERROR)
    main()
