/* Contexts and their tensors: descriptions only, no bytes. A context keeps the first failure, so that a
 * caller can make hundreds of tensors and check the status once. */
#include "alloc/buffer/tensor.h"

#include <stdio.h>

#include "alloc/buffer/buffer.h"
#include "core/mem.h"
#include "core/status.h"

static const tsr_tracked_kind context_kind = {"context of tensors", NULL, NULL};

tsr_status tsr_context_create(tsr_runtime *rt, tsr_context **context_out)
{
    tsr_status status = TSR_OK;
    tsr_context *context = NULL;

    if (!rt || !context_out)
        return tsr_fail(TSR_ERR_INVALID, "tsr_context_create needs a runtime and a place for the context");
    TSR_TRY(TSR_NEW(&context, "a tensor context"));
    context->rt = rt;
    tsr_track(&rt->tracked, &context->tracked, &context_kind);
    *context_out = context;
out:
    return status;
}

void tsr_context_destroy(tsr_context *context)
{
    if (!context)
        return;
    tsr_untrack(&context->tracked);
    for (int i = 0; i < context->n_tensors; i++) {
        tsr_buffer_detach(context->tensors[i]);
        tsr_mem_free(context->tensors[i]);
    }
    tsr_mem_free(context->tensors);
    tsr_mem_free(context);
}

static tsr_status make_room(tsr_context *context)
{
    return tsr_mem_grow(&context->tensors, context->n_tensors, &context->capacity, 16,
                        sizeof *context->tensors, "the tensors of a context");
}

static tsr_status context_add(tsr_context *context, tsr_type type, const int64_t ne[4], const char *name,
                              tsr_tensor **tensor_out)
{
    tsr_status status = TSR_OK;
    tsr_tensor *tensor = NULL;

    TSR_TRY(make_room(context));
    TSR_TRY(TSR_NEW(&tensor, "a tensor"));
    TSR_TRY(tsr_tensor_init(tensor, context->rt, type, ne, name));
    tensor->index = context->n_tensors;
    context->tensors[context->n_tensors++] = tensor;
    *tensor_out = tensor;
    tensor = NULL; /* now the context's */
out:
    tsr_mem_free(tensor);
    return status;
}

tsr_tensor *tsr_tensor_3d(tsr_context *context, tsr_type type, int64_t ne0, int64_t ne1, int64_t ne2,
                          const char *name)
{
    const int64_t ne[4] = {ne0, ne1, ne2, 1};
    tsr_tensor *tensor = NULL;
    if (!context) {
        tsr_fail(TSR_ERR_INVALID, "tensor %.63s needs a context; was its creation checked?",
                 name ? name : "");
        return NULL;
    }
    tsr_status status = context_add(context, type, ne, name, &tensor);
    if (status != TSR_OK && context->status == TSR_OK) {
        context->status = status;
        snprintf(context->error, sizeof context->error, "%s", tsr_last_error());
    }
    return tensor;
}

tsr_tensor *tsr_tensor_2d(tsr_context *context, tsr_type type, int64_t ne0, int64_t ne1, const char *name)
{
    return tsr_tensor_3d(context, type, ne0, ne1, 1, name);
}

tsr_tensor *tsr_tensor_1d(tsr_context *context, tsr_type type, int64_t ne0, const char *name)
{
    return tsr_tensor_3d(context, type, ne0, 1, 1, name);
}

tsr_status tsr_context_status(const tsr_context *context)
{
    if (!context)
        return tsr_fail(TSR_ERR_INVALID, "the context is NULL; was its creation checked?");
    return context->status == TSR_OK ? TSR_OK : tsr_fail(context->status, "%s", context->error);
}

const char *tsr_tensor_name(const tsr_tensor *tensor)
{
    return tensor->name;
}

tsr_type tsr_tensor_type(const tsr_tensor *tensor)
{
    return tensor->type;
}

const int64_t *tsr_tensor_ne(const tsr_tensor *tensor)
{
    return tensor->ne;
}

int64_t tsr_tensor_n_rows(const tsr_tensor *tensor)
{
    return tsr_tensor_rows(tensor);
}

int64_t tsr_tensor_n_elements(const tsr_tensor *tensor)
{
    return tensor->ne[0] * tsr_tensor_rows(tensor);
}

size_t tsr_tensor_bytes(const tsr_tensor *tensor)
{
    return tsr_type_row_bytes(tensor->type, tensor->ne[0]) * (size_t)tsr_tensor_rows(tensor);
}

tsr_sharding tsr_tensor_sharding(const tsr_tensor *tensor)
{
    return tensor->placement.sharding;
}

int tsr_tensor_split_axis(const tsr_tensor *tensor)
{
    return tensor->placement.sharding == TSR_SHARDING_SPLIT ? tensor->placement.axis : -1;
}

size_t tsr_tensor_device_bytes(const tsr_tensor *tensor, int device)
{
    return tsr_placement_bytes(tensor, &tensor->placement, device);
}
