/* CUDA splits its runtime API off into this header; here both are one. */
#include "cuda_runtime.h"
