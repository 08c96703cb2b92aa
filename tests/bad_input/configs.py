"""Configs: YAML, gin, overrides, sweeps."""

from __future__ import annotations

from tests.bad_input.case import JUNK, Case, replacing, writing


def _yaml(given: str, text: str | bytes, *says: str) -> Case:
    return Case(given, "embark train a.yaml", says, writing("a.yaml", text))


def _gin(given: str, text: str, *says: str) -> Case:
    return Case(given, "embark train a.gin", says, writing("a.gin", text))


def _change(given: str, override: str, *says: str) -> Case:
    return Case(given, f"embark train tiny.yaml '{override}'", says)


DATA = "data: {kind: synthetic}\n"

YAML = [
    Case(
        "a file that is not there", "embark train no.yaml", ("no.yaml: No such file",)
    ),
    Case(
        "another kind of file",
        "embark train run/plan.json",
        ("must end in .yaml, .yml, .gin",),
    ),
    _yaml("nothing", "", "a.yaml: is empty, must be a mapping"),
    _yaml("only a comment", "# data\n", "a.yaml: is empty, must be a mapping"),
    _yaml("a list", "[1, 2]", "[1, 2] given, must be a mapping of sections"),
    _yaml("bytes that are no text", JUNK, "a.yaml: is not UTF-8 text"),
    _yaml("a control character", "a: \x01", "unacceptable character #x0001"),
    _yaml("a bracket left open", "a: 1\nb: [1\nc: 3", "line 3: YAML error: while"),
    _yaml("a key twice", "a: 1\nb: {c: 1, c: 2}", "line 2", "key 'c' is there twice"),
    _yaml("two documents", "a: 1\n---\nb: 1", "line 2", "a single document"),
    _yaml("a date that is none", "a: 2024-13-45", "month must be in 1..12"),
    _yaml(
        "an object of Python",
        "a: !!python/object/apply:os.system ['false']",
        "line 1",
        "could not determine a constructor",
    ),
    _yaml("no data", "name: a", "data.kind: missing, must be 'synthetic' or"),
    _yaml("data of no kind", "data: {}", "data.kind: missing, must be 'synthetic'"),
    _yaml(
        "an unknown kind of model",
        DATA + "model: {kind: drlm}",
        "model.kind: 'drlm' given, must be 'dlrm_dcnv2' or 'dlrm'",
    ),
    _yaml(
        "a model without its key",
        DATA + "model: {kind: din}",
        "model.history: missing, must be set: Feature whose past values each sequence",
    ),
    _yaml("a number for a section", DATA + "model: 3", "model: 3 given, must be a map"),
    _yaml("a section misspelt", DATA + "trian: {}", "did you mean train?"),
    _yaml("a section without keys", DATA + "mesh:", "mesh: None given, must be a map"),
    _yaml("a key that is no text", DATA + "1: 2", "1: 1 given as a key, must be text"),
    _yaml("a long value", DATA + f"seed: {'x' * 999}", f"seed: '{'x' * 76}... given"),
    _yaml(
        "a rate that is not a number",
        DATA + "dense_optimizer: {learning_rate: .nan}",
        "dense_optimizer.learning_rate: nan given, must be a finite number",
    ),
    _yaml(
        "synthetic data without tables",
        DATA,
        "embedding.tables: has none; synthetic data needs it",
    ),
    _yaml(
        "a table without rows",
        DATA + "embedding: {tables: {a: {}}}",
        "embedding.tables.a.rows: synthetic data needs it",
    ),
    _yaml(
        "a table that no feature reads",
        DATA + "embedding: {tables: {a: {rows: 2}, b: {rows: 2}}, features: {a: {}}}",
        "table 'b' is read by no feature",
    ),
]

GIN = [
    _gin("nothing", "", "a.gin: is empty, must bind at least ExperimentConfig.data"),
    _gin("half a statement", "a.b = 1\nc.d", "a.gin, line 2: gin syntax error"),
    _gin("a value that is none", "a.b = 1\nc.d = =", "line 2", "Unable to parse value"),
    _gin("a call", "a.b = f(3)", "line 1: gin syntax error: Failed to parse token 'f'"),
    _gin("a bracket left open", "a.b = (\n", "gin syntax error"),
    _gin(
        "an import, which would run code",
        "import os\nExperimentConfig.data = @SyntheticConfig()",
        "import os: a.gin, line 1: an import would run code",
    ),
    _gin("an include that is not there", "include 'b.gin'", "b.gin: No such file"),
    _gin("an include of itself", "include 'a.gin'", "leads back to itself"),
    _gin(
        "a class misspelt",
        "ExperimentConfig.data = @SynthticConfig()",
        "@SynthticConfig() given, must be @SyntheticConfig() or",
    ),
    _gin("an unknown macro", "TrainConfig.steps = %steps", "no such macro"),
    _gin(
        "a binding that nothing reads",
        "ExperimentConfig.data = @SyntheticConfig()\nDCNConfig.deep = [1]",
        "DCNConfig: is bound, but nothing refers to @DCNConfig()",
    ),
]

OVERRIDES = [
    _change("no value", "train.steps", "must read dotted.key=value"),
    _change("a key misspelt", "train.bach_size=4", "did you mean batch_size?"),
    Case(
        "a key below a number",
        "embark train tiny.yaml train.steps.most=4",
        ("cannot set 'most' in 1, not a mapping",),
    ),
    _change("text for a number", "train.steps=many", "'many' given, must be a valid"),
    _change("half a step", "train.steps=2.5", "2.5 given, must be a valid integer"),
    _change("no steps", "train.steps=0", "0 given, must be greater than 0"),
    _change(
        "a negative rate", "embedding.optimizer.learning_rate=-1", "-1 given, must"
    ),
    _change("steps and epochs", "train.epochs=2", "must be one of the two"),
    _change(
        "early stopping that never looks",
        "train.early_stopping={patience: 2}",
        "early_stopping needs eval_every",
    ),
    _change(
        "an unknown schedule",
        "dense_optimizer.schedule={kind: cosin}",
        "dense_optimizer.schedule.kind: 'cosin' given",
    ),
    _change(
        "a warm-up as long as the run",
        "embedding.optimizer.schedule={kind: cosine, warmup_steps: 1}",
        "embedding.optimizer.schedule: warm-up and hold take 1 steps, must be fewer",
    ),
    _change("all values dropped", "model.dropout=1", "1 given, must be less than 1"),
    _change(
        "text that steers a terminal", "a\x1b[31m\x07=1", r"a\x1b[31m\x07: unknown"
    ),
    _change("a scale above 1", "scale=2", "2 given, must be a number above 0"),
    Case(
        "a scale of real data",
        "embark train prepared.yaml scale=0.5",
        ("data.kind is 'prepared', must be 'synthetic'",),
    ),
    _change(
        "a batch that devices cannot share",
        "mesh.gpus_per_node=3",
        "train.batch_size is 32, must be a multiple of the 3 devices",
    ),
    _change(
        "more devices than there are",
        "mesh.nodes=32",
        "mesh: plan needs 32 × 1 = 32 devices, this machine shows 8",
    ),
    _change(
        "a batch larger than the data",
        "train.batch_size=1024",
        "train.batch_size is 1,024, more than the 512 training samples",
    ),
    _change(
        "bags larger than the host's memory",
        "embedding.features.items.hotness=100000000",
        "feature 'items': hotness is 100,000,000",
        "then take 16,384 GB, this machine has",
    ),
    Case(
        "a batch larger than the host's memory",
        "embark train tiny.yaml train.batch_size=10000000000000 "
        "data.train_samples=10000000000000 fleet=fleet.yaml",
        ("train.batch_size: 10,000,000,000,000 samples of 4 ids", "this machine has"),
        replacing("fleet.yaml", "this machine", "1.0e+30"),
    ),
    _change(
        "columns that cannot be split so",
        "embedding.tables.user.column_shards=3",
        "table 'user': column_shards is 3, must divide dim 4",
    ),
    _change(
        "an owner that is not there",
        "embedding.tables.user.devices=[5]",
        "table 'user': devices [5] must lie in 0..0",
    ),
    _change(
        "slots of a table that has one for each row",
        "embedding.tables.user.slots=5",
        "table 'user': slots is 5, but tier is 'device'",
    ),
    _change(
        "more slots than rows",
        "embedding.tables.user={rows: 300, tier: disk, slots: 9000}",
        "table 'user': slots is 9000, must be at most its 300 rows",
    ),
    _change(
        "hot rows of a dynamic table",
        "embedding.tables.user={rows: 300, slots: 90, max_slots: 99, hot_rows: 5}",
        "table 'user': hot_rows is 5, but a dynamic table has",
        "leave hot_rows out",
    ),
    _change(
        "a feature of an unknown table",
        "embedding.features.user.table=town",
        "'user' reads table 'town', which is not among the tables",
    ),
    _change(
        "a model that does not suit the tables",
        "model.bottom=[8]",
        "model: feature 'items' has dim 4, must be 8",
    ),
    _change(
        "kernels that cannot run here",
        "embedding.kernels=mosaic_gpu",
        "embedding.kernels: mosaic_gpu needs a GPU",
    ),
    _change(
        "data that are not there",
        "data={kind: movielens_100k, path: nope}",
        "nope",
        "No such file",
    ),
    _change("a sweep", "sweep.seed=[0,1]", "run embark sweep, or add sweep=null"),
]


def _sweep(given: str, override: str, *says: str) -> Case:
    return Case(given, f"embark sweep tiny.yaml '{override}'", says)


SWEEPS = [
    Case("nothing to try", "embark sweep tiny.yaml", ("sweep lists no values",)),
    _sweep("no values", "sweep.seed=[]", "sweep.seed: [] given, must not be empty"),
    _sweep(
        "a number for a list", "sweep.seed=3", "sweep.seed: 3 given, must be a list"
    ),
    _sweep("a value twice", "sweep.seed=[1,1]", "sweep lists seed=1 twice"),
    _sweep(
        "a key misspelt",
        "sweep.train.stebs=[1]",
        "tiny.yaml with sweep.train.stebs=[1]: 1 problem",
        "did you mean steps? (tried with 1)",
    ),
    _sweep(
        "a value that cannot be",
        "sweep.seed=[0,-1]",
        "seed: -1 given, must be greater than or equal to 0 (tried with -1)",
    ),
    Case(
        "a folder that holds something",
        "embark sweep tiny.yaml sweep.seed=[0] --workdir run",
        ("run is not empty: pass --resume",),
    ),
]

ENTRANCES = {
    "YAML configs": YAML,
    "gin configs": GIN,
    "overrides": OVERRIDES,
    "sweeps": SWEEPS,
}
