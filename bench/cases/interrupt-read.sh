# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
#
# A READ of 4 KiB.

by_interrupt read ib_read_lat 4096
