"""Every axis name, once.

Axis words used across the package: `batch` (prompts run together), `problem`, `layer`, `head` (query heads, zero-based),
`kv_head`, `dest` (the position that attends, a query), `src` (the position attended to, a key), `token` (positions of one
prompt), `d_head`, `d_model`, `d_mlp`, `vocab`. `*lead` stands for any leading axes.
"""

from jaxtyping import Bool, Float, Int
from torch import Tensor

Pattern = Float[Tensor, "*lead dest src"]  # attention probabilities; every row sums to 1 over the keys it can see
PerRow = Float[Tensor, "*lead dest"]
PerColumn = Float[Tensor, "*lead src"]
Visible = Bool[Tensor, "*#lead dest src"]
"""True where a query can see a key (causality, padding and sliding windows)."""
Segment = Bool[Tensor, "*#lead src"]
"""True for the tokens of one segment; leading axes broadcast against the pattern's: `[batch, 1, src]` for one segment per
prompt of a padded batch `[batch, head, dest, src]`."""
Counts = Int[Tensor, "*lead src"]
Vectors = Float[Tensor, "*lead src d"]  # one vector per token: values, residuals or outputs

PerHead = Float[Tensor, "*lead"]

Z = Float[Tensor, "batch token head d_head"]
Logits = Float[Tensor, "batch read vocab"]
