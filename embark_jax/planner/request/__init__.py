"""What is asked for: the words of this folder.

- **workload**: the fleet, the batch, and the circumstances of a step.
- **table use**: what the features ask of one table; tables of equal use are alike.
- **skew**: how the ids of a table are distributed over its rows, as a power law (Zipf)
  or as a histogram of a sample.
- **statistics**: the file of such histograms that ``embark data stats`` writes.
- **table list**: tables of a model without data or code, in YAML.
- **dense load**: what the dense layers take of every device's memory.
- **wire**: the formats in which rows and gradients travel.
- **forced placement**: what the user fixes of a table's placement.
"""
