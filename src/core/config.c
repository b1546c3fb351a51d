/* Reading a config whose size the caller tells. */
#include "core/config.h"

#include <string.h>

tsr_status tsr_config_read(const char *name, const void *config, size_t oldest, void *own, size_t bytes)
{
    size_t size;
    if (!config)
        return TSR_OK;
    memcpy(&size, config, sizeof size);
    if (size > bytes)
        return tsr_fail(
            TSR_ERR_INVALID,
            "%s.size is %zu, and this library knows %zu bytes: the caller is from a newer version of "
            "tsr",
            name, size, bytes);
    if (size < oldest)
        return tsr_fail(TSR_ERR_INVALID,
                        "%s.size is %zu, and no version of it is smaller than %zu; start from %s_default()",
                        name, size, oldest, name);
    memcpy(own, config, size);
    memcpy(own, &bytes, sizeof bytes);
    return TSR_OK;
}

size_t tsr_config_write(const void *own, size_t bytes, void *config, size_t size)
{
    memset(config, 0, size);
    memcpy(config, own, size < bytes ? size : bytes);
    memcpy(config, &size, sizeof size);
    return bytes;
}
