"""Which heads carry the effect of inserted tokens, on whom do they act, where, by what, and what is enough?

Names the heads and tests them on fresh problems, then takes their circuit apart there: direct and indirect effects, edges
between heads, sites and tokens, minimal sets, what the heads write, and the effect without the tokens. One page tells it
in this order.

The same as `mless-interp circuit`. Options, what is computed and what is shown of it: `mless_interp/app/circuit.py`.
"""

import mless_interp as mi

app = mi.app.circuit.app

if __name__ == "__main__":
    app()
