"""The search for a plan: the words of this folder.

- **instance**: one request: groups of alike tables, with the candidates of each.
- **candidate**: a cluster, a split and an exchange that a table may take, such as "RB,
  8 row shards × 2 column shards, flat"; the search *tries* the relaxation's best.
- **relaxation**: a linear program in which shards have no owners and loads are spread
  evenly; its optimum is the **bound**: no plan is faster.
- **rounding**: a candidate for every table, from the relaxation's fractions.
- **assignment**: a candidate and owners for every table: the search's form of a plan.
- **insertion**: puts a table in at the owners where it adds least to the smooth cost.
- **move**: a table is taken out and inserted anew, with the same or another candidate.
- **local search**: moves while they help.
"""
