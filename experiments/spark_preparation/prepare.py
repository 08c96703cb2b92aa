"""Numbers values on a cluster, by Spark, as ``embark data prepare`` does.

    spark-submit prepare.py --raw clicks --columns columns.yaml --out numbered

It reads a folder of Parquet, and what ``--columns`` of ``embark data prepare parquet``
says of it: ``label``, ``labels``, ``weight``, ``time``, ``split``, ``dense``, and
``features`` with their tables, separators and lists. It writes to ``--out``:

- ``values/TABLE``: value and count of each table;
- ``samples``: the rows with ids in the place of values;
- ``columns.yaml``: says that they are ids, to prepare the samples as they are:

    embark data prepare parquet --raw numbered/samples --columns numbered/columns.yaml

Vocabularies and ids are those that DuckDB makes of the same rows, if these say their
split, or all of them are for training (``split: none``).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import yaml
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from embark_jax.data.columns import Columns
from embark_jax.data.vocabulary import FIRST_ID, MISSING_ID, RARE_ID
from embark_jax.prepare.values import BLANKS, MISSING

ROW = "row of the sample"
WHOLE = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)
DECIMALS = [
    (r"^([+-]?)\.(\d+)$", "$10.$2"),
    (r"^(?:\+|(-))?0*(\d+)(?:\.0*)?$", "$1$2"),
    (r"^(?:\+|(-))?0*(\d+)\.(\d*[1-9])0*$", "$1$2.$3"),
    (r"^-0$", "0"),
]
"""The one way to write a number, as in ``embark_jax/prepare/values.py``."""


def canonical(value: Column) -> Column:
    """Returns the one way to write a text; null for a missing one."""
    text = F.regexp_replace(value, f"^[{BLANKS}]+|[{BLANKS}]+$", "")
    number = text
    for pattern, written in DECIMALS:
        number = F.regexp_replace(number, pattern, written)
    return (
        F.when(text.isin(*MISSING), None)
        .when(text.isin("True", "TRUE"), "true")
        .when(text.isin("False", "FALSE"), "false")
        .otherwise(number)
    )


def keys(samples: DataFrame, name: str, separator: str | None) -> Column:
    """Returns the values of a feature, in the form of its vocabulary."""
    kind, column = samples.schema[name].dataType, F.col(f"`{name}`")
    is_list = isinstance(kind, T.ArrayType)
    single = kind.elementType if isinstance(kind, T.ArrayType) else kind
    if not isinstance(single, (*WHOLE, T.StringType, T.BooleanType)):
        raise SystemExit(f"column {name}: is {kind}, must be integers or text")
    is_whole = isinstance(single, WHOLE)

    def key(value: Column) -> Column:
        return value.cast("bigint") if is_whole else canonical(value.cast("string"))

    if separator is not None and not is_list:
        column, is_list = F.split(column, F.lit(f"\\Q{separator}\\E")), True
    if not is_list:
        return key(column)
    return F.filter(F.transform(column, key), lambda value: value.isNotNull())


def vocabulary(samples: DataFrame, names: list[str], min_count: int) -> DataFrame:
    """Returns key, count and id of the values of features that read one table."""
    frames = []
    for name in names:
        column = F.col(f"`{name}`")
        if isinstance(samples.schema[name].dataType, T.ArrayType):
            column = F.explode(column)
        frames.append(samples.select(column.alias("key")).where("key IS NOT NULL"))
    whole = frames[0]
    for frame in frames[1:]:
        whole = whole.unionAll(frame)
    counted = whole.groupBy("key").count().where(F.col("count") >= min_count)
    order = Window.orderBy(F.col("count").desc(), "key")
    return counted.withColumn("id", F.row_number().over(order) + F.lit(FIRST_ID - 1))


def numbered(samples: DataFrame, name: str, known: DataFrame) -> DataFrame:
    """Returns samples with ids in the place of a feature's values."""
    column = F.col(f"`{name}`")
    known = known.select(F.col("key"), F.col("id").cast("bigint").alias("id"))
    id_ = F.coalesce("id", F.lit(RARE_ID).cast("bigint"))
    if not isinstance(samples.schema[name].dataType, T.ArrayType):
        found = samples.join(known, column == known["key"], "left")
        id_ = F.when(column.isNull(), F.lit(MISSING_ID).cast("bigint")).otherwise(id_)
        return found.withColumn(name, id_).drop("key", "id")
    each = samples.select(ROW, F.posexplode(column).alias("place", "value"))
    each = each.join(known, F.col("value") == known["key"], "left")
    bags = each.groupBy(ROW).agg(
        F.sort_array(F.collect_list(F.struct("place", id_.alias("id")))).alias("bag")
    )
    ids = F.coalesce(F.col("bag.id"), F.array().cast("array<bigint>"))
    return samples.join(bags, ROW, "left").withColumn(name, ids).drop("bag")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--raw", required=True)
    parser.add_argument("--columns", type=Path, required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--min-count", type=int, default=1)
    options = parser.parse_args()
    spark = SparkSession.builder.appName("embark").getOrCreate()
    raw = spark.read.parquet(options.raw)
    described = yaml.safe_load(options.columns.read_text())
    columns = Columns.model_validate(described).completed(raw.columns, options.raw)
    samples = raw.select(*(F.col(f"`{name}`") for name in columns.named))
    samples = samples.withColumn(ROW, F.monotonically_increasing_id())
    for name, feature in columns.features.items():
        samples = samples.withColumn(name, keys(samples, name, feature.separator))
    samples = samples.persist()
    training = samples
    if columns.split_column is not None:
        training = samples.where(
            F.lower(f"`{columns.split_column}`").startswith("train")
        )
    tables: dict[str, list[str]] = {}
    for name, feature in columns.features.items():
        tables.setdefault(feature.table or name, []).append(name)
    features = {}
    for table, names in tables.items():
        known = vocabulary(training, names, options.min_count).persist()
        values = known.select(F.col("key").alias("value"), "count")
        values.write.mode("overwrite").parquet(f"{options.out}/values/{table}")
        rows = FIRST_ID + known.count()
        for name in names:
            samples = numbered(samples, name, known)
            kept = columns.features[name].model_dump(exclude={"separator"})
            features[name] = kept | {"table": table, "rows": rows}
    samples.drop(ROW).write.mode("overwrite").parquet(f"{options.out}/samples")
    text = columns.model_dump(mode="json", exclude_unset=True) | {"features": features}
    Path(options.out, "columns.yaml").write_text(
        yaml.safe_dump(text | {"others": False})
    )
    spark.stop()


if __name__ == "__main__":
    main()
