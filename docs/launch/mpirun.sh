#!/bin/bash
# What:     embark train by Open MPI, a process for each GPU; it does not start again by itself.
# Run:      docs/launch/mpirun.sh CONFIG /shared/runs/a 2 8 [KEY=VALUE]...
# Override: the hosts, with Open MPI's own options in OMPI_MCA_orte_default_hostfile.
# Source:   https://docs.jax.dev/en/latest/multi_process.html
set -euo pipefail
if [ $# -lt 4 ]; then
    echo "usage: $0 CONFIG WORKDIR NODES GPUS_PER_NODE [KEY=VALUE]..." >&2
    exit 2
fi
config=$1 workdir=$2 nodes=$3 gpus=$4
shift 4
mkdir -p "$workdir"
exec mpirun -n $((nodes * gpus)) --map-by "ppr:$gpus:node" \
    embark train "$config" mesh.nodes="$nodes" mesh.gpus_per_node="$gpus" "$@" \
    --distributed --workdir "$workdir" --resume
