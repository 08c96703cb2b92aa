"""A train step of EMBark's system, HugeCTR, as tasks.

The order of the stages, and what each reads, writes and sends, follow the source of
NVIDIA-Merlin/HugeCTR: ``HugeCTR/src/pybind/model_pipeline.cpp`` for the pipeline,
``HugeCTR/embedding`` for the stages. Rows and their states are float32; pooled rows,
gradients and the dense layers are float16. Kernels are counted as they are launched.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import numpy as np

from embark_jax.planner.request.workload import Workload
from embark_jax.plans import traffic
from embark_jax.simulator.tasks import NETWORK, NODE_LINK, Amount, Tasks
from embark_jax.simulator.timeline import Task
from experiments.embark_table1.loads import Loads

FLOAT_BYTES, HALF_BYTES, INDEX_BYTES = 4, 2, 4
LABEL_BYTES = 4
"""Bytes of the owner by which an id is sorted, and of an id's position in a bag."""
SORT_PASSES = 4
"""Passes of a radix sort, of eight bits each, over the 32 bits of an index."""
REPLICATED, SHARDED = "look up replicated", "look up"


def update_bytes(workload: Workload) -> int:
    """Bytes of memory that updating a parameter moves: its gradient is read, it and its
    states are read and written."""
    return FLOAT_BYTES * (3 + 2 * workload.state_values[0])


def index_bytes(key_bytes: int) -> int:
    """Bytes of memory that an id moves: it is sorted by row with its position, then
    grouped."""
    pair = key_bytes + INDEX_BYTES
    return (2 * SORT_PASSES + 1) * pair + 6 * INDEX_BYTES


class Messages(Tasks):
    """Tasks of messages that are as many as each device has."""

    def exchange(
        self,
        name: str,
        phase: str,
        message_bytes: Amount,
        after: Iterable[str],
        times: int = 1,
        *,
        alone: bool = True,
    ) -> Task:
        """Messages between all devices, in ``times`` all-to-alls. ``message_bytes`` of
        a device counts its messages to all devices, itself included. What is not alone
        on the links has a communicator of its own, and keeps none waiting."""
        fleet = self.rates.fleet
        sent = traffic.LinkBytes(0.0, 0.0)
        if np.any(message_bytes):
            sent = traffic.all_to_all_bytes(
                message_bytes,  # pyright: ignore[reportArgumentType] arrays do as well
                fleet.nodes,
                fleet.gpus_per_node,
            )
        return self._collective(
            name,
            phase,
            self.links if alone else frozenset(),
            sent,
            after,
            fleet.devices,
            latency_us=times * self.rates.exchange_us,
        )

    def inside_nodes(
        self, name: str, phase: str, message_bytes: Amount, after: Iterable[str]
    ) -> Task:
        """Messages between the devices of each node, written into each other's memory;
        bytes include what a device keeps."""
        gpus = self.rates.fleet.gpus_per_node
        ms = self.rates.links_ms(
            traffic.LinkBytes(message_bytes * (gpus - 1) / gpus, 0.0)  # pyright: ignore
        )
        return self.task(name, phase, NODE_LINK, ms, after, gpus)

    def along_rails(
        self, name: str, phase: str, message_bytes: Amount, after: Iterable[str]
    ) -> Task:
        """Messages between the devices of equal rank in their nodes; bytes include what
        a device keeps."""
        fleet = self.rates.fleet
        sent = traffic.LinkBytes(
            0.0,
            message_bytes * (fleet.nodes - 1) / fleet.nodes,  # pyright: ignore
        )
        return self._collective(
            name,
            phase,
            NETWORK,
            sent,
            after,
            fleet.devices,
            latency_us=self.rates.of("rail").exchange_us,
        )

    def _collective(
        self, name, phase, resources, sent: traffic.LinkBytes, after, group, latency_us
    ) -> Task:
        some = np.any(sent.node_link) or np.any(sent.network)
        ms = self.rates.links_ms(sent, latency_us if some else 0.0)
        return self.task(name, phase, resources, ms, after, group)


@dataclasses.dataclass(frozen=True)
class EmbarkStep:
    """Makes the tasks of a step.

    Attributes:
      make: makes tasks on the fleet.
      workload: batch and optimizer.
      loads: what each device has to do for the embeddings.
      key_bytes: bytes of an id.
    """

    make: Messages
    workload: Workload
    loads: Loads
    key_bytes: int

    def tasks(self) -> list[Task]:
        """The tasks in the order in which they run without overlap. ``after`` holds
        what they wait for in the overlapped pipeline, which sends the ids of the next
        step."""
        return [
            *self._ids(),
            *self._forward(),
            *self.make.dense(
                dataclasses.replace(self.workload.dense, dtype="float16"),
                self.workload.device_batch,
                bottom_after=(SHARDED,),
                top_after=("pool", REPLICATED),
            ),
            *self._backward(),
            *self._updates(),
        ]

    def _ids(self) -> list[Task]:
        """Requesters sort the ids of their samples by owner, UB ids after making them
        unique. Owners put the ids that they receive in order. The number of ids of each
        bag travels ahead."""
        loads, key = self.loads, self.key_bytes
        own_ids = loads.ids.sum() / self.workload.devices
        # Ids get a label and are sorted in one pass.
        sort_bytes = 4 * own_ids * (key + LABEL_BYTES)
        # A hash table takes the id, its position in the table, and the answer.
        sort_bytes += 3 * loads.repeated_ids * (key + INDEX_BYTES)
        sent = loads.ids * key + loads.bags * INDEX_BYTES + loads.received_ids * key
        # Ids change from the order of requesters to that of tables, and become rows.
        arrange_bytes = 4 * key * (loads.ids + loads.received_ids)
        arrange_bytes += 6 * INDEX_BYTES * loads.bags
        return [
            self.make.memory("sort ids", "ids", sort_bytes, kernels=8, ids=True),
            self.make.exchange(
                "exchange ids", "ids", sent, ["sort ids"], times=2, alone=False
            ),
            self.make.memory(
                "arrange ids",
                "ids",
                arrange_bytes,
                ["exchange ids"],
                kernels=8,
                ids=True,
            ),
        ]

    def _forward(self) -> list[Task]:
        make, loads = self.make, self.loads
        sent_bytes, got_bytes = self._rail_bytes()
        # Pointers to rows are written and read, then the rows are pooled.
        lookup_bytes = loads.ids * 4 * INDEX_BYTES + loads.id_values * FLOAT_BYTES
        lookup_bytes += loads.sums * HALF_BYTES
        lookup_bytes += loads.received_values * (FLOAT_BYTES + HALF_BYTES)
        pool_bytes = got_bytes + self._pooled_bytes() + loads.pooled_values * HALF_BYTES
        tasks = [
            make.memory(SHARDED, "lookup", lookup_bytes, kernels=3),
            make.inside_nodes(
                "push sums", "exchange", loads.sums * HALF_BYTES, [SHARDED]
            ),
        ]
        if self.workload.fleet.nodes > 1:
            added_bytes = self._over_node(loads.sums) * HALF_BYTES + sent_bytes
            tasks += [
                make.memory("add up in node", "lookup", added_bytes, ["push sums"]),
                make.along_rails(
                    "exchange sums", "exchange", sent_bytes, ["add up in node"]
                ),
            ]
        arrived = [tasks[-1].name, "exchange rows"]
        rows_bytes = loads.received_values * HALF_BYTES
        local_bytes = loads.local_values * FLOAT_BYTES
        return [
            *tasks,
            make.exchange("exchange rows", "exchange", rows_bytes, [SHARDED]),
            make.memory("pool", "lookup", pool_bytes, arrived, kernels=2),
            make.memory(REPLICATED, "lookup", local_bytes, [SHARDED]),
        ]

    def _backward(self) -> list[Task]:
        make, loads = self.make, self.loads
        _, got_bytes = self._rail_bytes()
        ids = loads.ids + loads.received_ids + loads.local_ids
        gather_bytes = self._pooled_bytes() + got_bytes
        gather_bytes += loads.pooled_values * HALF_BYTES
        gather_bytes += loads.unique_values * (FLOAT_BYTES + HALF_BYTES)
        tasks = [
            make.memory(
                "index ids",
                "update",
                ids * index_bytes(self.key_bytes),
                [REPLICATED],
                kernels=10,
                ids=True,
            ),
            make.memory(
                "gather gradients",
                "update",
                gather_bytes,
                ["cross backward"],
                kernels=2,
            ),
        ]
        if self.workload.fleet.nodes > 1:
            tasks.append(
                make.along_rails(
                    "exchange gradients", "exchange", got_bytes, ["gather gradients"]
                )
            )
        return [
            *tasks,
            make.inside_nodes(
                "spread gradients",
                "exchange",
                loads.filled * HALF_BYTES,
                [tasks[-1].name],
            ),
            make.exchange(
                "exchange row gradients",
                "exchange",
                loads.unique_values * HALF_BYTES,
                ["gather gradients"],
            ),
        ]

    def _updates(self) -> list[Task]:
        make, loads = self.make, self.loads
        parameters = self.workload.dense.parameters
        per_parameter = update_bytes(self.workload)
        replicated_bytes = loads.replicated_values * FLOAT_BYTES
        local_bytes = loads.local_values * HALF_BYTES + replicated_bytes
        # Gradients of bags arrive; each id reads the gradient of its bag.
        reduce_bytes = HALF_BYTES * (loads.filled + loads.id_values)
        reduce_bytes += HALF_BYTES * loads.received_values + FLOAT_BYTES * loads.touched
        # The gradient is float16, and so is the copy for the next step.
        dense_bytes = parameters * (per_parameter - FLOAT_BYTES + 2 * HALF_BYTES)
        own_ready = ["index ids", "cross backward"]
        reduced_ready = ["bottom backward", "reduce replicated"]
        arrived = ["index ids", "spread gradients", "exchange row gradients"]
        return [
            make.memory("reduce replicated", "update", local_bytes, own_ready),
            make.all_reduce(
                "all-reduce",
                "all-reduce",
                parameters * HALF_BYTES + replicated_bytes,
                reduced_ready,
            ),
            make.memory("update dense", "dense", dense_bytes, ["all-reduce"]),
            make.memory("reduce gradients", "update", reduce_bytes, arrived, kernels=2),
            make.memory(
                "update rows",
                "update",
                loads.touched * per_parameter,
                ["reduce gradients"],
            ),
            make.memory(
                "update replicated",
                "update",
                loads.replicated_values * per_parameter,
                ["all-reduce"],
            ),
        ]

    def _pooled_bytes(self) -> float:
        return self.workload.device_batch * self.loads.outputs * HALF_BYTES

    def _rail_bytes(self) -> tuple[np.ndarray, np.ndarray]:
        """``[devices]`` bytes of the sums that a device sends to the devices of its
        rank in all nodes, its own included, and of those that it receives; in one node,
        from its neighbours."""
        fleet, loads, batch = (
            self.workload.fleet,
            self.loads,
            self.workload.device_batch,
        )
        if fleet.nodes == 1:
            got = self._over_node(loads.sums) * HALF_BYTES
            return np.zeros(fleet.devices), got
        sent = np.repeat(loads.node_sums, fleet.gpus_per_node) * batch * fleet.nodes
        got = np.full(fleet.devices, batch * loads.node_sums.sum())
        return sent * HALF_BYTES, got * HALF_BYTES

    def _over_node(self, values: np.ndarray) -> np.ndarray:
        """``[devices]`` each device's equal share of what its node has."""
        gpus = self.workload.fleet.gpus_per_node
        return np.repeat(values.reshape(-1, gpus).mean(axis=1), gpus)
