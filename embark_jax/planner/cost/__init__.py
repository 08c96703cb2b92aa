"""The cost of a plan: the words of this folder.

- **candidate**: a cluster, a split and an exchange of a table, before its shards have
  owners. All of a request, or of a plan, are one array, priced once.
- **work**: bytes and collectives that a phase of the step needs from a device; a **work
  item** is that of all devices, by table.
- **load**: what the shards of a device add up to, by kind and storage: partial sums,
  ids, rows read, rows touched, rows.
- **peak**: the largest load of any device. A phase ends when its fullest device is
  done, so that a step costs peaks times prices.
- **objective**: peaks times prices, of loads that a search changes table by table.
- **priced plan**: placements with their loads and work items; all that is said of a
  plan's cost is a sum over these.
"""
