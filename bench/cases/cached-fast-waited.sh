# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
#
# The MR cache beside FRWR, READ and invalidate that are each waited for.

requires="policies end:policy end:submitters end:buffers knob:memory=fast_waited"
cached_beside fast_waited
[ "$CLOCK" != icount ] || goal="ratio <= 0.65"
