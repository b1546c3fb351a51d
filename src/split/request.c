/* tensor_split: from floats to shares. */
#include "split/request.h"

#include <math.h>
#include <string.h>

#include "core/status.h"

tsr_status tsr_split_request_read(const float *tensor_split, int n, int n_devices,
                                  tsr_split_request *request_out)
{
    tsr_split_request request = {.n = n_devices};
    double sum = 0;

    if (n < 0 || n_devices < 1 || n_devices > TSR_MAX_DEVICES)
        return tsr_fail(TSR_ERR_INVALID,
                        "tensor_split of length %d over %d device%s: 1 to %d devices can share", n, n_devices,
                        tsr_plural(n_devices), TSR_MAX_DEVICES);
    if (!tensor_split)
        n = 0;
    if (n > n_devices)
        return tsr_fail(TSR_ERR_INVALID,
                        "tensor_split entry %d has no device: there are %d; drop entries or add devices",
                        n_devices + 1, n_devices);
    for (int d = 0; d < n; d++) {
        if (!isfinite(tensor_split[d]) || tensor_split[d] < 0)
            return tsr_fail(TSR_ERR_INVALID,
                            "tensor_split entry %d is %g; it must be finite and not negative, 0 leaves the "
                            "device out",
                            d + 1, (double)tensor_split[d]);
        sum += (double)tensor_split[d];
    }
    request.automatic = sum == 0;
    for (int d = 0; d < n_devices; d++) {
        if (request.automatic)
            request.share[d] = 1.0 / n_devices;
        else
            request.share[d] = d < n ? (double)tensor_split[d] / sum : 0;
    }
    *request_out = request;
    return TSR_OK;
}

tsr_status tsr_split_check(const float *tensor_split, int n, int n_devices, double *shares_out)
{
    tsr_split_request request;
    if (!shares_out)
        return tsr_fail(TSR_ERR_INVALID, "tsr_split_check: shares_out must not be NULL");
    tsr_status status = tsr_split_request_read(tensor_split, n, n_devices, &request);
    if (status == TSR_OK)
        memcpy(shares_out, request.share, (size_t)n_devices * sizeof *shares_out);
    return status;
}
