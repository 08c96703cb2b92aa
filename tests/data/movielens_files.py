"""Files like those of MovieLens-100k, of three users and three films."""

from pathlib import Path

import numpy as np

USERS = """\
user_id:token\tage:token\tgender:token\toccupation:token\tzip_code:token
11\t24\tM\twriter\t85711
12\t53\tF\tother\t94043
13\t24\tF\twriter\t85711
"""
ITEMS = """\
item_id:token\tmovie_title:token_seq\trelease_year:token\tclass:token_seq
5\tToy Story\t1995\tAnimation Children's Comedy
6\tFour Rooms\t1995\tThriller
7\tFour Toy Boys (Rooms, The)\tunkonwn\tDrama Comedy
"""
RATINGS = 30
HEADER = "user_id:token\titem_id:token\trating:float\ttimestamp:float\n"


def folder_of(folder: Path, ratings: int = RATINGS, **changes: str) -> Path:
    first = [11, 5, 1, 881250949]
    rows = np.random.default_rng(0).integers(
        first, [14, 8, 6, first[3] + 10**6], (ratings, 4)
    )
    lines = ("\t".join(map(str, row)) + "\n" for row in rows)
    texts = {"inter": HEADER + "".join(lines), "user": USERS, "item": ITEMS} | changes
    for kind, text in texts.items():
        (folder / f"ml-100k.{kind}").write_text(text, "utf-8")
    return folder
