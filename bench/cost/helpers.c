// SPDX-License-Identifier: GPL-2.0
/* Kbuild links an object into one module only; this is a copy of its own. */
#include "../../rust/sys/helpers.c"
