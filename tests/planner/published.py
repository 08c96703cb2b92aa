"""The five models of EMBark's evaluation (RecSys 2024), as lists of tables.

From the table lists that NVIDIA released with it: NVIDIA-Merlin/HugeCTR,
``benchmarks/embedding_collection``; DLRM-DCNv2 is MLPerf's (mlcommons/training,
``recommendation_v2``).
"""

from embark_jax.tables import FeatureSpec, TableSpec

K, M, B = 10**3, 10**6, 10**9
ZIPF_EXPONENT = 1.1
"""Of the released generator; the paper says 1.2."""

DCNV2_ROWS = (
    *(40 * M, 39060, 17295, 7424, 20265, 3, 7122, 1543, 63, 40 * M, 3067956, 405282),
    *(10, 2209, 11938, 155, 4, 976, 14, 40 * M, 40 * M, 40 * M, 590152, 12973, 108, 36),
)
DCNV2_HOTNESS = (
    *(3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1),
    *(6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1),
)

# Tables, rows, hotness, dim.
MODELS: dict[str, list[tuple[int, int, int, int]]] = {
    "T180": [
        *((5, 10 * K, 100, 128), (5, 4 * M, 50, 64), (5, 4 * M, 30, 64)),
        *((5, 50 * M, 50, 32), (20, K, 50, 128), (30, 10 * K, 30, 128)),
        *((10, 5 * M, 20, 256), (20, 4 * M, 20, 128), (10, 10, 100, 128)),
        *((10, K, 10, 64), (10, 10 * K, 100, 128), (5, 100 * K, 100, 64)),
        *((40, 4 * M, 200, 64), (1, 50 * M, 100, 128), (1, 500 * M, 100, 32)),
    ],
    "T200": [
        *((10, 100, 1, 128), (10, K, 1, 128), (10, K, 5, 128), (10, 10 * K, 20, 128)),
        *((20, 10 * K, 100, 128), (10, 10 * K, 1, 128), (10, 100 * K, 1, 128)),
        *((10, M, 1, 128), (20, 2 * M, 1, 128), (10, 4 * M, 1, 128)),
        *((20, 4 * M, 1, 128), (20, 2 * M, 10, 64), (10, 4 * M, 20, 128)),
        *((10, 4 * M, 30, 128), (10, 4 * M, 50, 128), (10, 50 * M, 100, 128)),
    ],
    "T510": [
        *((100, K, 1, 128), (150, 100 * K, 1, 128), (20, M, 1, 128)),
        *((50, 2 * M, 1, 128), (150, 4 * M, 1, 128), (20, 4 * M, 10, 128)),
        (20, 4 * M, 100, 128),
    ],
    "T7": [
        *((1, 10 * M, 80, 256), (1, 400 * M, 20, 64), (1, B, 20, 128)),
        *((1, 5 * B, 40, 32), (1, B, 1, 128), (1, 10 * M, 1, 64)),
        (1, 10 * M, 1, 128),
    ],
    "DLRM-DCNv2": [
        (1, rows, hotness, 128)
        for rows, hotness in zip(DCNV2_ROWS, DCNV2_HOTNESS, strict=True)
    ],
}


def model(name: str) -> tuple[list[TableSpec], list[FeatureSpec]]:
    """Tables and features of a published model."""
    tables, features = [], []
    for count, rows, hotness, dim in MODELS[name]:
        for _ in range(count):
            table = TableSpec(f"t{len(tables)}", rows, dim)
            tables.append(table)
            features.append(FeatureSpec(table.name, hotness=hotness))
    return tables, features
