# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
#
# The MR cache beside FRWR, READ and invalidate in one chain.

requires="policies end:policy end:submitters end:buffers knob:memory=fast"
cached_beside fast
[ "$CLOCK" != icount ] || goal="ratio <= 0.95"
