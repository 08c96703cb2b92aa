#!/bin/bash
# What:     One process of a run, started by hand on each host.
# Run:      on host 0: docs/launch/by_hand.sh CONFIG /shared/runs/a host0:7777 2 0
#           on host 1: docs/launch/by_hand.sh CONFIG /shared/runs/a host0:7777 2 1
# Override: mesh keys after the process id, such as mesh.nodes=2 mesh.gpus_per_node=8.
set -euo pipefail
if [ $# -lt 5 ]; then
    echo "usage: $0 CONFIG WORKDIR HOST:PORT PROCESSES PROCESS_ID [KEY=VALUE]..." >&2
    exit 2
fi
config=$1 workdir=$2
export EMBARK_COORDINATOR=$3 EMBARK_PROCESSES=$4 EMBARK_PROCESS_ID=$5
shift 5
mkdir -p "$workdir"

exec embark train "$config" "$@" \
    --distributed --workdir "$workdir" --resume --max-restarts 3
