# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
#
# What storage does for a write I/O: a SEND of 64 B answered by an RDMA READ of
# 4 KiB and a SEND of 16 B: the floor for a storage transport.

requires="policies end:policy op:exchange_in"
other_name=naive

round() { exchange_round exchange_in; }
