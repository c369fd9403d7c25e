"""Do the paper's attention figures, and what they claim, hold on a model?

Draws one of five figures of arXiv 2510.01032 in the paper's arrangement from a model's own attention, with intervals
over problems, and checks each of the figure's claims against its null.

The same as `mless-interp figures`. Its options, what is computed and what is shown of it:
`mless_interp/app/reproduce_figures.py`.
"""

import mless_interp as mi

app = mi.app.reproduce_figures.app

if __name__ == "__main__":
    app()
