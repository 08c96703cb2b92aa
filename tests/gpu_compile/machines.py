"""GPUs that are not there."""

from jax.sharding import Mesh

from embark_jax.plans import fleet
from experiments.step_bytes.absent import absent_mesh


def h100_mesh(nodes: int, gpus_per_node: int = 8) -> Mesh:
    """A mesh of H100s."""
    return absent_mesh(fleet.dgx_h100(nodes, gpus_per_node))
