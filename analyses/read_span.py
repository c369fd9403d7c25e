"""Can the answer, or something on the way to it, be read at the inserted positions, and from which layer on?

Reads the residual stream of the inserted tokens with the model's own unembedding and with linear probes, and holds each
problem's own token against that of a partner, exchanged.

The same as `mless-interp read-span`. Options, what is computed and what is shown of it: `mless_interp/app/read_span.py`.
"""

import mless_interp as mi

app = mi.app.read_span.app

if __name__ == "__main__":
    app()
