/** @file
 * Graphs over split tensors, and the programs they compile to.
 *
 * A graph is built once for one shape: inputs, weights (tensors of a context, placed in any buffer type),
 * ops. Compiling decides for every tensor whether it is REPLICATED (each device has all of it), SPLIT (each
 * device has its rows or columns) or PARTIAL (the value is the sum over devices), writes one op list per
 * device, puts an all-reduce exactly where a PARTIAL meets an op that needs the whole value, and packs all
 * intermediate results into one arena per device. Running sets all devices to work and waits for them.
 *
 *     tsr_tensor *x = tsr_graph_input(graph, TSR_TYPE_F32, 4096, 1, "x");
 *     tsr_tensor *y = tsr_mul_mat(graph, w, x);          w's rows are divided over the devices, so y is SPLIT
 *     tsr_graph_output(graph, y);
 *     tsr_program_compile(graph, NULL, &program);
 *     tsr_tensor_set(x, data, 0, 4096 * 4);
 *     tsr_program_run(program);
 *     tsr_tensor_get(y, out, 0, tsr_tensor_bytes(y));    gathered from the devices
 *
 * Shapes: activations are F32, [ne0, n_tokens]; ne0 is contiguous. A weight is ne[1] rows of ne[0] columns.
 *
 * Errors: a constructor that fails returns NULL, the message is in tsr_last_error(), and the graph remembers
 * the first failure: later constructors given NULL return NULL too, and tsr_program_compile returns that
 * first status. So a builder may check once, at the end. Where an op names a weight, the operand is a tensor
 * of a context; all others are inputs or results of the same graph, and a weight in their place is refused.
 *
 * Threads: a graph and the programs made from it belong to one thread at a time, like their runtime.
 * Ownership: the graph owns the tensors its constructors return; weights stay the context's and must outlive
 * every program that uses them. The graph must outlive its programs, and its inputs and outputs may be set
 * and read only while the program lives that was compiled last.
 */
#ifndef TSR_GRAPH_H
#define TSR_GRAPH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tsr/tensor.h>

TSR_BEGIN_DECLS

/** Ops over tensors, before they are compiled. */
typedef struct tsr_graph tsr_graph;
/** A compiled graph: an op list and an arena per device. */
typedef struct tsr_program tsr_program;

/** An empty graph on `rt`, which must outlive it. TSR_ERR_MEMORY. */
TSR_NODISCARD TSR_API tsr_status tsr_graph_create(tsr_runtime *rt, tsr_graph **graph_out);
TSR_API void tsr_graph_destroy(tsr_graph *graph); /**< NULL is fine */

/** A tensor that the caller fills with tsr_tensor_set() after compiling; every device that needs it gets a
 * copy. It keeps its value from run to run. F32 or I32. */
TSR_API tsr_tensor *tsr_graph_input(tsr_graph *graph, tsr_type type, int64_t ne0, int64_t ne1,
                                    const char *name);

/** Keep `tensor`, an input or a result of the graph, until the run is over, so that tsr_tensor_get() can read
 * it. Returns `tensor`. */
TSR_API tsr_tensor *tsr_graph_output(tsr_graph *graph, tsr_tensor *tensor);

/** Give a computed tensor a name for messages and traces (cut to 63 bytes). Returns `tensor`. */
TSR_API tsr_tensor *tsr_tensor_rename(tsr_tensor *tensor, const char *name);

/** Rows ids[0..n) of `table` ([ne0, rows]: a weight of any type, or an F32 activation) as F32 [ne0, n]; an id
 * that is no row gives zeros. A table whose rows are SPLIT gives a PARTIAL. */
TSR_API tsr_tensor *tsr_get_rows(tsr_graph *graph, tsr_tensor *table, tsr_tensor *ids);

/** w x: F32 [w.ne1, n_tokens]. w SPLIT by rows needs x whole and gives a SPLIT; w SPLIT by columns takes its
 * part of x and gives a PARTIAL. */
TSR_API tsr_tensor *tsr_mul_mat(tsr_graph *graph, tsr_tensor *w, tsr_tensor *x);

/** x / rms(x) * weight over ne0; with weight.ne0 a divisor of x.ne0, over each such part (a norm per
 * head). */
TSR_API tsr_tensor *tsr_rms_norm(tsr_graph *graph, tsr_tensor *x, tsr_tensor *weight, float eps);

/** LayerNorm over ne0: (x - mean) / sqrt(variance + eps) * weight + bias; bias NULL: none. Both are F32
 * weights of x.ne0 elements on the same devices. */
TSR_API tsr_tensor *tsr_layer_norm(tsr_graph *graph, tsr_tensor *x, tsr_tensor *weight, tsr_tensor *bias,
                                   float eps);

/** Rotary embedding of each head of x [n_heads * head_dim, n_tokens]. `table` is an input [n_rot, n_tokens]
 * of (cos, sin) pairs: row t holds, for i = 0 .. n_rot / 2 - 1, the cosine and sine of token t's angle i at
 * 2i and 2i + 1, e.g. of position * base^(-2i / n_rot). The first n_rot elements of each head are rotated.
 * interleaved: pairs of elements (2i, 2i + 1), as llama; otherwise (i, i + n_rot / 2), as neox. */
TSR_API tsr_tensor *tsr_rope(tsr_graph *graph, tsr_tensor *x, tsr_tensor *table, int64_t head_dim,
                             bool interleaved);

/** silu(gate) * up. */
TSR_API tsr_tensor *tsr_swiglu(tsr_graph *graph, tsr_tensor *gate, tsr_tensor *up);
/** gelu(gate) * up, with the tanh form of gelu. */
TSR_API tsr_tensor *tsr_geglu(tsr_graph *graph, tsr_tensor *gate, tsr_tensor *up);

/** gelu(x) in its tanh form: the activation of an FFN without a gate. */
TSR_API tsr_tensor *tsr_gelu(tsr_graph *graph, tsr_tensor *x);
/** max(x, 0)^2: the activation of an FFN without a gate. */
TSR_API tsr_tensor *tsr_relu_squared(tsr_graph *graph, tsr_tensor *x);

/** a + b; b may have one row, which is then added to every row of a. A weight b (a bias) must have one. */
TSR_API tsr_tensor *tsr_add(tsr_graph *graph, tsr_tensor *a, tsr_tensor *b);

TSR_API tsr_tensor *tsr_scale(tsr_graph *graph, tsr_tensor *x, float factor); /**< factor * x */

/** cap * tanh(x / cap): close to x where x is small compared with cap, and always in (-cap, cap). cap > 0. */
TSR_API tsr_tensor *tsr_softcap(tsr_graph *graph, tsr_tensor *x, float cap);

/** softmax(factor * x) over ne0. */
TSR_API tsr_tensor *tsr_softmax(tsr_graph *graph, tsr_tensor *x, float factor);

/** I32 [1, n_tokens]: index of the largest element of each row, the lowest index on a tie. */
TSR_API tsr_tensor *tsr_argmax(tsr_graph *graph, tsr_tensor *x);

/** How PARTIAL results are added up. */
typedef enum tsr_reduction {
    TSR_REDUCTION_EXACT = 0, /**< 64-bit fixed point: the same bits for every split; 8 bytes per element */
    TSR_REDUCTION_F32 = 1,   /**< float: half the bytes, bits depend on the split */
    /** bfloat16: a quarter of the bytes; every device's part and the sum are rounded to 8 bits of mantissa.
     * docs/exact-reduction.md compares the three */
    TSR_REDUCTION_BF16 = 2
} tsr_reduction;

/** How a graph is compiled and run. */
typedef struct tsr_program_config {
    size_t size;             /**< sizeof(tsr_program_config) */
    tsr_reduction reduction; /**< how PARTIAL results are added up */
    uint64_t timeout_ns;     /**< a run that takes longer fails with TSR_ERR_TIMEOUT; 0 = no limit */
    /** Of activations beside quantized weights: integers of 16 bits (16 or 0) or of 8 bits, as in llama.cpp.
     * 32 integers share an F32 scale (128 on GPUs with 16 bits); the error is up to 2^-16 or 2^-8 of the
     * largest of them. On host devices NVFP4 weights are multiplied with F32 activations, on GPUs all types
     * but Q8_0, Q4_0, Q4_K, Q5_K and Q6_K are. Where a processor multiplies bfloat16, 8 also rounds the
     * activations for BF16 weights (with AMX, for F16 weights too) to bfloat16: an error of up to 2^-8 of
     * each value. 8 is faster on host devices, except with the kernels `generic` and `neon`. Either gives the
     * same bits for every split. */
    int activation_bits;
} tsr_program_config;

/** Write the defaults to a struct of `size` bytes, the program's sizeof. Returns the bytes that the struct
 * has in this library. */
TSR_API size_t tsr_program_config_init(tsr_program_config *config_out, size_t size);

/** The defaults: the exact reduction, no time limit, 16-bit activations. */
static inline tsr_program_config tsr_program_config_default(void)
{
    tsr_program_config config;
    tsr_program_config_init(&config, sizeof config);
    return config;
}

/** Compile and allocate the arenas. `config` may be NULL; it is only read during the call. TSR_ERR_INVALID
 * when shapes or shardings cannot meet (the message names the tensor), TSR_ERR_MEMORY when an arena does not
 * fit (the message names device and bytes). */
TSR_NODISCARD TSR_API tsr_status tsr_program_compile(tsr_graph *graph, const tsr_program_config *config,
                                                     tsr_program **program_out);
TSR_API void tsr_program_destroy(tsr_program *program); /**< NULL is fine */

/** Run once and wait. TSR_ERR_RANGE: a partial sum left the exact reduction's range. TSR_ERR_TIMEOUT:
 * timeout_ns passed; the message names the device, the op, and the devices that did not arrive there.
 * TSR_ERR_DEVICE_LOST: a device makes no progress (tsr/runtime.h). TSR_ERR_DEVICE: a device failed.
 * TSR_ERR_CANCELLED: see tsr_program_cancel(). After a failure the outputs are not to be used; unless the
 * runtime is lost, the program may run again. Allocates nothing. */
TSR_NODISCARD TSR_API tsr_status tsr_program_run(tsr_program *program);

/** End the run of the program, or, if it does not run, its next run, which returns TSR_ERR_CANCELLED and so
 * takes the request. A run that ends in another way in the same moment leaves the request to the next one.
 * Host devices stop after the op that runs, but finish beside two or more GPUs; GPUs finish.
 * TSR_ERR_UNSUPPORTED in several processes, which would wait for each other. Any thread, until
 * tsr_program_destroy() is called. Does not block. */
TSR_NODISCARD TSR_API tsr_status tsr_program_cancel(tsr_program *program);

/** Withdraw a request of tsr_program_cancel() that no run has taken. Returns whether there was one. Any
 * thread, as tsr_program_cancel(). */
TSR_API bool tsr_program_withdraw_cancel(tsr_program *program);

/** What a compiled program needs and does. */
typedef struct tsr_program_info {
    int n_devices;        /**< of the runtime */
    int n_all_reduces;    /**< per run */
    int n_all_gathers;    /**< per run */
    int n_transfers;      /**< copies of an activation from one device to another */
    uint64_t reserved[8]; /**< 0; fields of later versions take its place */
} tsr_program_info;

/** What a compiled program needs of one device. */
typedef struct tsr_program_device_info {
    int n_ops;            /**< per run */
    size_t arena_bytes;   /**< packed size of the activations */
    size_t bound_bytes;   /**< max-live lower bound: no packing can be smaller */
    size_t comm_bytes;    /**< workspace of the collectives */
    uint64_t reserved[8]; /**< 0; fields of later versions take its place */
} tsr_program_device_info;

/** Write what the program needs and does. */
TSR_API void tsr_program_get_info(const tsr_program *program, tsr_program_info *info_out);
/** TSR_ERR_INVALID if there is no such device. */
TSR_NODISCARD TSR_API tsr_status tsr_program_get_device(const tsr_program *program, int device,
                                                        tsr_program_device_info *info_out);

TSR_END_DECLS
#endif
