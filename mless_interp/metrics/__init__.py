"""Pure formulas: tensors in, numbers out, one published definition each."""
