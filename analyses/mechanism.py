"""How do inserted tokens act on attention and on MLP activations: by scaling what was there, or by adding something?

Splits every head's output into lambda z + Sigma (exact in the first layer, with a residual in deeper ones), compares the
activations of one MLP with and without the insertion, and gives the layer's heads only the scale or only the bias.

The same as `mless-interp mechanism`. Options, what is computed and what is shown of it: `mless_interp/app/mechanism.py`.
"""

import mless_interp as mi

app = mi.app.mechanism.app

if __name__ == "__main__":
    app()
