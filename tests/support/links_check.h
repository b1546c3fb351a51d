/* What must hold of measured links, whatever the devices. */
#ifndef TSR_TESTS_LINKS_CHECK_H
#define TSR_TESTS_LINKS_CHECK_H

#include <tsr/links.h>

/* Open `devices` on this machine, measure what they exchange, and check that every pair and the whole set was
 * measured, in both directions, and that nothing of it is left on the devices. */
void links_check_measured(const char *devices);

#endif
