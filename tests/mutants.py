"""Mutants of the package: does a quick test fail where an operator, a number or a
condition is another?

    python -m tests.mutants --out mutants.jsonl --last 20

A later call goes on where the results end. The package alone says which mutants there
are. Each is tried with the quick tests of its room, and of the matrix of runs.
"""

import argparse
import ast
import dataclasses
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROOMS = ("embedding", "cache", "train", "planner", "data", "checkpoint")
COUNT, SECONDS = 60, 900
OTHERS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}
OTHERS |= {"+": "-", "-": "+", "*": "+", "//": "*", "/": "*", "%": "//"}
OTHERS |= {"and": "or", "or": "and", "is": "is not", "is not": "is"}
OTHERS |= {"in": "not in", "not in": "in"}
SAY_ONLY = (ast.Raise, ast.JoinedStr, ast.AnnAssign, ast.arguments, ast.Assert)


@dataclasses.dataclass(frozen=True)
class Mutant:
    """A change of one file: bytes from ``start`` to ``end`` become ``text``."""

    file: str
    line: int
    start: int
    end: int
    text: str

    def source(self) -> bytes:
        old = (ROOT / self.file).read_bytes()
        return old[: self.start] + self.text.encode() + old[self.end :]

    def __str__(self) -> str:
        files = (ROOT / self.file).read_bytes(), self.source()
        old, new = (file.decode().splitlines()[self.line - 1].strip() for file in files)
        return f"{self.file}:{self.line}: {old}  =>  {new}"


def changes(file: Path) -> Iterator[Mutant]:
    """All changes of a file."""
    source = file.read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def span(node):
        begin = starts[node.lineno - 1] + node.col_offset
        return begin, starts[node.end_lineno - 1] + node.end_col_offset

    def change(line, start, end, text):
        return Mutant(str(file.relative_to(ROOT)), line, start, end, text)

    def visit(node):
        if isinstance(node, SAY_ONLY):
            return
        match node:
            case (
                ast.Compare(left=left, comparators=[right])
                | ast.BinOp(left=left, right=right)
                | ast.BoolOp(values=[left, right, *_])
            ):
                start, end = span(left)[1], span(right)[0]
                between = source[start:end].decode()
                operator = re.sub(r"[\s()\\]+", " ", between).strip()
                if other := OTHERS.get(operator):
                    text = between.replace(operator, other, 1)
                    yield change(left.end_lineno, start, end, text)
            case ast.Constant(value=bool() | int() as value):
                other = not value if isinstance(value, bool) else value + 1
                yield change(node.lineno, *span(node), str(other))
            case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
                start, end = span(test)
                text = f"(not ({source[start:end].decode()}))"
                yield change(test.lineno, start, end, text)
        for child in ast.iter_child_nodes(node):
            yield from visit(child)

    return visit(ast.parse(source))


def draw() -> list[Mutant]:
    """As many of each room, the rooms in turn."""
    rooms = []
    for room in ROOMS:
        files = sorted((ROOT / "embark_jax" / room).rglob("*.py"))
        found = [each for file in files for each in changes(file)]
        rooms.append(random.Random(0).sample(found, COUNT // len(ROOMS)))
    return [mutant for each in zip(*rooms, strict=True) for mutant in each]


def survives(mutant: Mutant, tree: Path) -> bool:
    """Whether no test fails with the mutant in a copy of the tree."""
    room = f"tests/{mutant.file.split('/')[1]}"
    command = [sys.executable, "-m", "pytest", "-x", "--timeout=120", "tests/matrix"]
    command += ["-m", "not slow and not gpu_compile", "-p", "no:cacheprovider", room]
    path = os.pathsep.join([str(tree), str(tree / "kernels")])
    file = tree / mutant.file
    file.write_bytes(mutant.source())
    try:
        return not subprocess.run(
            command,
            cwd=tree,
            env=os.environ | {"PYTHONPATH": path, "CI": "1"},
            capture_output=True,
            timeout=SECONDS,
        ).returncode
    except subprocess.TimeoutExpired:
        return True  # no test has failed
    finally:
        shutil.copy(ROOT / mutant.file, file)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants")
    parser.add_argument("--out", type=Path, default="mutants.jsonl")
    parser.add_argument("--last", type=int, default=COUNT, help="mutants to try")
    args = parser.parse_args()
    args.out.touch()
    done = list(map(json.loads, args.out.read_text().splitlines()))
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        left = shutil.ignore_patterns(".*", "build", "runs", "__pycache__")
        shutil.copytree(ROOT, tree, ignore=left, symlinks=True)
        for mutant in draw()[len(done) : args.last]:
            survived = survives(mutant, tree)
            done.append({"mutant": str(mutant), "survived": survived})
            with args.out.open("a") as lines:
                lines.write(json.dumps(done[-1]) + "\n")
    for each in done:
        print("SURVIVED" if each["survived"] else "killed  ", each["mutant"])
    print(f"killed: {sum(not each['survived'] for each in done)} of {len(done)}")


if __name__ == "__main__":
    main()
