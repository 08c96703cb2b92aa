"""Odd text files, read by Python's own csv module and counted by a Counter: the same
values, ids and numbers."""

import csv
import gzip
import io
from collections import Counter

import numpy as np
import pytest

from embark_jax._base.files import read_arrow
from tests.prepare.raw_files import prepared, value
from tests.thorough import thorough

HEADER = "label,a,b,price,tags\n"
COLUMNS = {"dense": {"price": {}}, "features": {"tags": {"separator": "|"}}}
CASES = {
    "plain": "1,x,y,1.5,p|q\n0,y,x,2,q\n",
    "a separator in quotes": '1,"x,y",z,1,"p|q,r"\n',
    "quotes in quotes": '1,"say ""a""",x,1,p\n0,"""",x,1,p\n',
    "a line break in quotes": '1,"two\nlines",x,1,p\n0,a,b,2,q\n',
    "a quote inside": "1,5\" disk,x,1,p\n0,it's,x,1,p\n",
    "quotes around all": '"1","x","007","1.5","p|q"\n',
    "empty quotes": '1,"",x,"",""\n',
    "leading zeros": "1,007,7,007,07|7\n0,0,000,00,0\n1,-7,-007,-7,x\n",
    "signs and fractions": "1,+7,7.0,+7.50,7.|7\n0,.5,0.50,.5,-.5\n1,-0,-0.0,-0,0\n",
    "exponents stay texts": "1,1e3,1000,1e3,1E3|1000\n",
    "small floats": "1,1e-05,0.00001,1,-1.50e-07|5e-324\n0,0e-05,1e-5,1,1.e-05|1E-05\n",
    "other bases stay texts": "1,0x10,16,16,0x10|1_000\n",
    "huge integers": f"1,{2**63},{2**64 - 1},1,{10**30}|0{10**30}\n0,-{2**63},1,1,2\n",
    "long fractions": f"1,1.{'0' * 40}1,{'9' * 40}.0,1,p\n",
    "missing": "1,NULL,None,NaN,\\N|NA\n0,nan,N/A,,<NA>|x\n1,,null,NULL,\n",
    "words like those": "1,Null,none,1,NAN|na\n",
    "infinity is a text": "1,inf,-Infinity,1,inf\n",
    "truths": "1,True,TRUE,1,true\n0,False,false,0,tRUE|FALSE\n",
    "blanks": "1, x ,\tx, 1.5 , p | q \n0,x\u00a0,a b,2,\u00a0\n",
    "empty lists": "1,x,y,1,\n0,x,y,1,|\n1,x,y,1,||\n",
    "nulls in lists": "1,x,y,1,p||q|NULL\n0,x,y,1,|p\n",
    "equal values in a list": "1,x,y,1,p|p|q\n0,x,y,1,q|p|p\n",
    "ties": "1,b,B,1,b|B\n0,a,A,1,a|A\n1,ä,Z,1,ä\n0,9,10,1,9|10\n",
    "unicode": "1,Gödel,ゲーデル,1,🦆|é\n0,e\u0301,é,1,ﬁ\n1,Straße,STRASSE,1,ı\n",
    "text of queries": "1,'; DROP TABLE samples; --,$1,1,%|?\n0,{x},[y],1,\\\\\n",
    "long text": f"1,{'x' * 20_000},{'y' * 9_999},1,{'|'.join('pq' * 500)}\n",
    "too few columns": "1,x,y,1,p\n0,x,y\n1,z,y,2,q\n",
    "too many columns": "1,x,y,1,p\n0,x,y,1,p,q\n1,z,y,2,q\n",
    "empty lines": "\n1,x,y,1,p\n\n\n0,y,x,2,q\n\n",
    "no last line end": "1,x,y,1,p\n0,y,x,2,q",
    "small and large numbers": "1,x,y,1e-30,p\n0,x,y,-3e38,p\n1,x,y,0.1,p\n",
    "a negative zero": "1,x,y,-0.0,p\n",
}
FORMS = {
    "LF": lambda text: text.encode(),
    "CRLF, BOM": lambda text: text.replace("\n", "\r\n").encode("utf-8-sig"),
    "gz": lambda text: gzip.compress(text.encode()),
}
CASES_OF_FORMS = [
    *((case, form) for case in CASES for form in ("LF", "CRLF, BOM")),
    ("plain", "gz"),
]
ENDS_OF_LINES = (
    "plain",
    "a line break in quotes",
    "quotes around all",
    "leading zeros",
    "missing",
    "blanks",
    "empty lists",
    "too few columns",
    "empty lines",
    "no last line end",
)
"""Cases that may depend on how lines end."""
QUICK = [
    each
    for each in CASES_OF_FORMS
    if each[1] != "CRLF, BOM" or each[0] in ENDS_OF_LINES
]


def number(text: str) -> float:
    return 0.0 if value(text) is None else float(np.float32(text.strip()))


@pytest.mark.parametrize(("case", "form"), thorough(CASES_OF_FORMS, QUICK, unpack=True))
def test_values_ids_and_numbers_are_those_of_python(tmp_path, case, form):
    text = HEADER + CASES[case]
    path = tmp_path / "rows.csv"
    path.write_bytes(FORMS[form](text))
    out = tmp_path / "out"
    data = prepared(path, out, COLUMNS, split="none", on_bad_line="skip")
    text = text.replace("\n", "\r\n") if "CRLF" in form else text
    _, *lines = csv.reader(io.StringIO(text, newline=""))
    rows = [line for line in lines if len(line) == 5]
    (batch,) = data.in_file_order("train", 100)
    assert batch.labels.tolist() == [float(row[0]) for row in rows]
    assert batch.dense[:, 0].tolist() == [number(row[3]) for row in rows]
    bags = {
        "a": [[value(row[1])] for row in rows],
        "b": [[value(row[2])] for row in rows],
        "tags": [
            [v for v in map(value, row[4].split("|")) if v is not None] for row in rows
        ],
    }
    for name, of_rows in bags.items():
        counts = Counter(v for bag in of_rows for v in bag if v is not None)
        known = sorted(counts, key=lambda v: (-counts[v], v))
        found = read_arrow(data.folder / "vocabulary" / f"{name}.arrow")
        assert found["key"].to_pylist() == known
        assert found["count"].to_pylist() == [counts[v] for v in known]
        ids = dict(zip(known, range(2, 2 + len(known)), strict=True)) | {None: 0}
        for bag, row in zip(of_rows, np.asarray(batch.ids[name]).tolist(), strict=True):
            assert [i for i in row if i >= 0] == [ids[v] for v in bag]
