/* Takes the place of tsr_runtime_open() in the programs of this folder: see sharing.h. */
#include <tsr/runtime.h>

#include "cuda/gpu/sharing.h"

tsr_status __real_tsr_runtime_open(const tsr_runtime_config *config, tsr_runtime **rt_out);
tsr_status __wrap_tsr_runtime_open(const tsr_runtime_config *config, tsr_runtime **rt_out);

tsr_status __wrap_tsr_runtime_open(const tsr_runtime_config *config, tsr_runtime **rt_out)
{
    char text[GPU_SHARING_TEXT];
    tsr_runtime_config here = config ? *config : tsr_runtime_config_default();
    here.devices = gpu_sharing_devices(&gpu_sharing, here.devices, text);
    return __real_tsr_runtime_open(config ? &here : NULL, rt_out);
}
