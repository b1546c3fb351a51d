/* The table of architectures. */
#include "model/arch.h"

#include <string.h>

#include "core/mem.h"

tsr_status tsr_arch_find(const tsr_gguf *gguf, const tsr_arch **arch_out)
{
    static const tsr_arch *const archs[] = {&tsr_arch_llama};
    tsr_gguf_string name;
    if (!tsr_gguf_has_key(gguf, "general.architecture"))
        return tsr_fail(TSR_ERR_FORMAT, "%s: key general.architecture is missing", tsr_gguf_path(gguf));
    tsr_status status = tsr_gguf_get_string(gguf, "general.architecture", &name);
    if (status != TSR_OK)
        return status;
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++) {
        if (strlen(archs[i]->name) == name.bytes && memcmp(archs[i]->name, name.data, name.bytes) == 0) {
            *arch_out = archs[i];
            return TSR_OK;
        }
    }
    return tsr_fail(
        TSR_ERR_UNSUPPORTED,
        "%s: architecture \"%.*s\" is not supported; this version runs: llama; others can be planned",
        tsr_gguf_path(gguf), (int)TSR_MIN(name.bytes, (size_t)64), name.data);
}
