// SPDX-License-Identifier: GPL-2.0
/* Kbuild links an object into one module only; this is the second copy. */
#include "../../rust/sys/helpers.c"
