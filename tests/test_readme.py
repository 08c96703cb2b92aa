"""The README's example runs as it stands."""

import re
from pathlib import Path

README = (Path(__file__).parent.parent / "README.md").read_text()


def test_the_example_trains(capsys):
    (example,) = re.findall(r"```python\n(.*?)```", README, flags=re.S)
    namespace = {}
    exec(compile(example, "README.md", "exec"), namespace)
    out = capsys.readouterr().out
    auc, best = map(float, out.splitlines()[-1].split(" of "))
    # One device, 300 steps: far from chance and not beyond the best attainable.
    assert 0.6 < auc < best
    assert 0 < float(out.splitlines()[-2].removeprefix("loss ")) < 0.6
