"""Which attention heads carry the effect of inserted meaningless tokens?

Patches every head of a model, one at a time and exactly, on prompts with and without the insertion; names the heads that
carry the effect in most problems, and with `--confirm` tests them on fresh ones (`--mode locate`), or makes one sweep
(`--mode sweep`). Writes a table of heads with intervals, a map, a page of attention patterns and everything needed to
repeat the run.

The same as `mless-interp locate`. Options, what is computed and what is shown of it: `mless_interp/app/patch_heads.py`.
"""

import mless_interp as mi

app = mi.app.patch_heads.app

if __name__ == "__main__":
    app()
