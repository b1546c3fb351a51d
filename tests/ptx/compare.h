/* Launches of the simulated machine, executed a second time. */
#ifndef PTX_COMPARE_H
#define PTX_COMPARE_H

#include "ptx.h"

namespace ptx
{

std::string read_file(const std::string &path);
std::map<const void *, std::string> function_names();

} // namespace ptx

#endif
