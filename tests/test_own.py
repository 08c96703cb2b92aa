"""Models and data of one's own, by the name of their module."""

import json
import shutil

import pytest

from embark_jax._base.config import ConfigError
from embark_jax.config import reading
from embark_jax.run import experiment
from tests import runs
from tests.runs import OWN, done, embark


@pytest.fixture(autouse=True)
def there(monkeypatch, tmp_path):
    """As for a user who works in that folder."""
    monkeypatch.syspath_prepend(str(OWN))


def load(*overrides: str):
    return reading.load(OWN / "config.yaml", overrides)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "model.kind=my_model:Bilinaer",
            "my_model has no class or function 'Bilinaer'",
        ),
        ("model.kind=my_modl:Bilinear", "no module 'my_modl' is installed, in PYTHON"),
        ("model.width=3", "unexpected keyword argument 'width'; it takes "),
        ("data.smaples=3", "argument 'smaples'; it takes "),
        (
            "model={kind: my_model:Bilinear, lfet: user, right: item}",
            "my_model:Bilinear: got an unexpected keyword argument 'lfet'; it takes ",
        ),
        (
            "data.kind=my_model:nnx.Module",
            "data.kind: 'my_model:nnx.Module' given, must match patt",
        ),
        ("data.kind=types:SimpleNamespace", "SimpleNamespace: has no table_rows, feat"),
        ("model.kind=builtins:print", "it takes args, sep, end, file, flush"),
    ],
)
def test_what_is_wrong_is_named(override, message):
    with pytest.raises(ConfigError) as error:
        experiment.build(load(override))
    assert message in str(error.value)


def test_a_model_must_be_one(tmp_path, monkeypatch):
    (tmp_path / "not_a_model.py").write_text("def make(*args, **options): return 3\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match="make: gives a int, must give a Flax NNX"):
        experiment.build(load("model.kind=not_a_model:make"))


@pytest.mark.slow
def test_a_loss_of_ones_own(tmp_path, monkeypatch):
    (tmp_path / "my_loss.py").write_text(
        "import optax\n"
        "def half(logits, labels, embeddings):\n"
        "    return optax.sigmoid_binary_cross_entropy(logits, labels) / 2\n"
    )
    monkeypatch.chdir(tmp_path)
    small = ("data.samples=300", "train.batch_size=32", "embedding.dim=4")
    options = (*small, "train.steps=1", "train.epochs=null", "train.eval_every=null")
    losses = []
    for each in ((), ("train.loss=my_loss:half",)):
        run = tmp_path / f"run{len(losses)}"
        done("train", OWN / "config.yaml", *options, *each, "--workdir", run)
        losses.append(runs.losses(run)[1])
    assert losses[1] == pytest.approx(losses[0] / 2, rel=1e-6)
    both = "train.loss=my_loss:half", "train.label_smoothing=0.1"
    with pytest.raises(ConfigError, match="label_smoothing is of binary cross entropy"):
        load(*both)


@pytest.mark.slow
def test_a_run_of_ones_own(tmp_path, monkeypatch):
    """Trained on a 2 × 4 mesh, resumed on one device, exported, scored, swept."""
    monkeypatch.chdir(OWN)
    mesh = "mesh.nodes=2", "mesh.gpus_per_node=4"
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    done("train", "config.yaml", *mesh, "--workdir", whole)
    assert 0.87 < runs.final(whole)["test_auc"] < 0.93
    for steps, resume in ((200, ()), (600, ("--resume",))):
        done("train", "config.yaml", f"train.steps={steps}", "--workdir", cut, *resume)
    assert runs.final(cut)["test_auc"] == pytest.approx(
        runs.final(whole)["test_auc"], abs=1e-4
    )
    outcome = embark("export", cut, "--out", tmp_path / "export")
    runs.assert_refused(outcome, "my_model:Bilinear, code that Python would find")
    done("export", cut, "--out", tmp_path / "export", "--trust-code")
    description = json.loads((tmp_path / "export" / "model.json").read_text())
    assert description["model"]["kind"] == "my_model:Bilinear"
    swept = tmp_path / "swept"
    few = "train.steps=2 train.eval_every=null 'search.data.samples=[300, 400]'"
    done(f"search config.yaml --workdir {swept} {few}")
    assert len(list(swept.glob("trial-*"))) == 2
    shutil.rmtree(swept)
