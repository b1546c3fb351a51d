/* See cudasim.h of this folder, which has all. */
#include <cudasim.h>
