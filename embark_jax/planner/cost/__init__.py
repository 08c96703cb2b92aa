"""What a plan costs: the words of this folder.

- **shape**: a cluster, a split and an exchange of a table, before its shards have
  owners.
- **work**: what a phase of the step asks of a device, in bytes and collectives.
- **cost model**: prices work in milliseconds.
- **load**: what the shards that a device owns add up to, by kind and storage: partial
  sums, ids, rows read, rows touched, rows.
- **peak**: the largest load of any device. A phase ends when its fullest device is
  done, so that a step costs peaks times prices.
- **objective**: peaks times prices; the one place where a plan is priced.
"""
