# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
#
# A SEND of 64 B, half a round trip.

by_interrupt send_ping ib_send_lat 64
