"""Operations that runs and sweeps need, counted from a geometry."""

from dataclasses import dataclass

from .shape import Shape

Number = int | float


@dataclass(frozen=True)
class Arithmetic:
    """Floating-point operations (two for a product and its sum) of a geometry with `n_layers` layers, without logits."""

    shape: Shape
    n_layers: int

    @property
    def _attention(self) -> float:
        """Scores and mixed values of one query and one key."""
        return 4.0 * self.shape.info.n_heads * self.shape.info.d_head

    def whole(self, rows: Number, tokens: Number) -> float:
        r"""Whole forward passes: rows x tokens x layers.

        $$ L\, r\, t\, (2 N_{layer} + 4 H d\, t) $$
        """
        return self.n_layers * rows * tokens * (2 * self.shape.active + self._attention * tokens)

    def sweep(self, per_layer: Number, *, changed: int, read: int, length: int, first: Number | None = None) -> float:
        """A sweep of so many rows for each layer: a row joins at its layer, which it finishes, and goes through those after.

        `changed`: positions of a row, `read` those at which logits are read, to which the last layer's queries are cut;
        `first`: rows of layer 0, where these are others.
        """
        s = self.shape
        finish = 2 * (s.active - s.projections)
        kv = 2 * s.projections * 2 * s.info.n_key_value_heads / (s.info.n_heads + 2 * s.info.n_key_value_heads)
        query = 2 * s.projections - kv + self._attention * length
        total, joined = 0.0, 0.0
        for layer in range(self.n_layers):
            dest = read if layer == self.n_layers - 1 else changed
            total += joined * (dest * query + changed * kv)
            joined += per_layer if layer or first is None else first
            total += joined * dest * finish
        return total

    def logits(self, positions: Number) -> float:
        """Logits at so many positions."""
        return 2.0 * positions * self.shape.info.d_model * self.shape.info.d_vocab
