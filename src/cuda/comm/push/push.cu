/* The kernels of push.h. A thread handles the words threadIdx.x, threadIdx.x + PUSH_THREADS, ... of a region,
 * a batch of TSR_ROW_BATCH elements at a time, whose loads are in flight together. */
#include "cuda/comm/device_barrier.cuh"
#include "cuda/comm/push/push.h"
#include "cuda/comm/reduce.cuh"
#include "cuda/comm/wire.cuh"

#define EMPTY UINT64_MAX

enum { PUSH_THREADS = TSR_ROW_THREADS, ELEMENTS_PER_BLOCK = 1024, EAGER_LOOKS = 64 };

/* -- words -- */

template <typename Partial> struct push_word {
    static constexpr int elements = (int)(sizeof(uint64_t) / sizeof(Partial));
    static constexpr int batch = TSR_ROW_BATCH / elements; /* words of a thread's batch */
    static constexpr int looks = elements > 1 ? 3 : 2;     /* devices whose words are looked at together */
};

TSR_DEVICE uint64_t bits_of(float value)
{
    return __float_as_uint(value);
}

TSR_DEVICE uint64_t bits_of(tsr_bfloat value)
{
    return value.bits;
}

/* Word `at` of a part of n elements, as it travels. */
TSR_DEVICE uint64_t word_of(const int64_t *part, int64_t at, int64_t n)
{
    return at < n ? (uint64_t)part[at] ^ (uint64_t)INT64_MAX : 0;
}

template <typename Partial> TSR_DEVICE uint64_t word_of(const Partial *part, int64_t at, int64_t n)
{
    constexpr int E = push_word<Partial>::elements;
    uint64_t word = 0;
    TSR_UNROLL
    for (int e = 0; e < E; e++)
        if (at * E + e < n)
            word |= bits_of(part[at * E + e]) << (64 / E * e);
    return word == EMPTY ? EMPTY ^ 1 : word; /* other NaNs */
}

/* Element e of a word, in the type in which parts are added up. */
TSR_DEVICE int64_t element_of(int64_t, uint64_t word, int)
{
    return (int64_t)(word ^ (uint64_t)INT64_MAX);
}

TSR_DEVICE float element_of(float, uint64_t word, int e)
{
    return __uint_as_float((unsigned)(word >> (32 * e)));
}

TSR_DEVICE float element_of(tsr_bfloat, uint64_t word, int e)
{
    return tsr_bfloat_to_f32((uint16_t)(word >> (16 * e)));
}

/* Wraps around: words past the end of a message are added, too, and after an abort words that are EMPTY. */
TSR_DEVICE int64_t sum_of(int64_t a, int64_t b)
{
    return (int64_t)((uint64_t)a + (uint64_t)b);
}

TSR_DEVICE float sum_of(float a, float b)
{
    return a + b;
}

/* -- rounds -- */

/* What a block sends and receives in a round: words [first, first + n) of the message, word first + i at
 * place i of each region. */
struct push_round {
    int64_t first;
    int n; /* at most a region's */
};

/* The rounds that the block has announced to each device, the present one included. Only the threads that
 * wait for a device need them, so they take no registers. */
struct push_rounds {
    uint64_t to[TSR_CUDA_MAX_PEERS];
};

/* Called by all threads. The stores of EMPTY in the round before come before the announcement. */
TSR_DEVICE void begin_round(const tsr_cuda_push &push, push_rounds *announced)
{
    __syncthreads();
    const uint64_t count = tsr_barrier_announce(push.barrier);
    if (count > 0)
        announced->to[threadIdx.x] = count;
    __syncthreads();
}

/* Returns false if the wait was aborted. */
TSR_DEVICE bool await_round(const tsr_cuda_push &push, const push_rounds &announced)
{
    return !tsr_barrier_is_mine(push.barrier) || tsr_barrier_await(push.barrier, announced.to[threadIdx.x]);
}

/* The region of a writer in a reader's inbox, of the round that was announced to `other`, one of the two. */
TSR_DEVICE uint64_t *region_of(const tsr_cuda_push &push, int writer, int reader,
                               const push_rounds &announced, int other)
{
    const tsr_cuda_barrier &m = push.barrier;
    const unsigned side = ((unsigned)announced.to[other] & 1) ^ 1; /* of round k: k % 2, from 0 */
    const int64_t place = ((int64_t)side * m.n_devices + writer) * m.max_blocks + blockIdx.x;
    return push.inbox[reader] + place * push.region;
}

/* The thread's batch of its own device's words from place `at` of the round on. */
template <typename Partial>
TSR_DEVICE void load_words(const void *part, push_round round, int at, int64_t n, uint64_t *words)
{
    TSR_UNROLL
    for (int j = 0; j < push_word<Partial>::batch; j++) {
        const int i = at + j * PUSH_THREADS;
        words[j] = i < round.n ? word_of(static_cast<const Partial *>(part), round.first + i, n) : 0;
    }
}

template <typename Partial>
TSR_DEVICE void send_words(const tsr_cuda_push &push, const tsr_cuda_reduction &reduction, int part,
                           push_round round, const push_rounds &announced)
{
    constexpr int B = push_word<Partial>::batch;
    const tsr_cuda_barrier &m = push.barrier;
    if (part < 0)
        return;
    for (int at = (int)threadIdx.x; at < round.n; at += B * PUSH_THREADS) {
        uint64_t words[B];
        load_words<Partial>(reduction.parts[part], round, at, reduction.n, words);
        for (int other = 0; other < m.n_devices; other++) {
            if (other == m.self || !(m.participants >> other & 1))
                continue;
            uint64_t *to = region_of(push, m.self, other, announced, other) + at;
            TSR_UNROLL
            for (int j = 0; j < B; j++)
                if (at + j * PUSH_THREADS < round.n)
                    tsr_store_relaxed_u64(to + j * PUSH_THREADS, words[j]);
        }
    }
}

/* A batch of one device's words, of which `left` are left. */
template <int B> TSR_DEVICE void look_at_words(const uint64_t *from, int left, uint64_t *words)
{
    TSR_UNROLL
    for (int j = 0; j < B; j++)
        words[j] = j * PUSH_THREADS < left ? tsr_load_relaxed_u64(from + j * PUSH_THREADS) : 0;
}

/* After a look: until all words have arrived. They make room for others. After many looks only the first word
 * is looked for, until that has arrived: inboxes in host memory are read over the bus. A thread that has seen
 * an abort waits no more. */
template <int B>
TSR_DEVICE void take_words(const tsr_cuda_push &push, uint64_t *from, int left, uint64_t *words,
                           bool &aborted)
{
    for (unsigned look = 1; !aborted; look++) {
        bool empty = false;
        TSR_UNROLL
        for (int j = 0; j < B; j++)
            empty = empty || words[j] == EMPTY;
        if (!empty)
            break;
        aborted = look % TSR_LOOKS_PER_ABORT_LOOK == 0 && tsr_load_relaxed_u32(push.barrier.aborted) != 0;
        tsr_spin_pause();
        TSR_UNROLL
        for (int j = 0; j < B; j++)
            if (words[j] == EMPTY && (j == 0 || look < EAGER_LOOKS || words[0] != EMPTY))
                words[j] = tsr_load_relaxed_u64(from + j * PUSH_THREADS);
    }
    TSR_UNROLL
    for (int j = 0; j < B; j++)
        if (j * PUSH_THREADS < left)
            tsr_store_relaxed_u64(from + j * PUSH_THREADS, EMPTY);
}

/* The thread's batch of sums from place `at` of the round on, parts in order. */
template <typename Partial>
TSR_DEVICE tsr_row_batch sum_words(const tsr_cuda_push &push, const tsr_cuda_reduction &reduction, int part,
                                   push_round round, const push_rounds &announced, int at, bool &aborted)
{
    constexpr int B = push_word<Partial>::batch, E = push_word<Partial>::elements,
                  LOOKS = push_word<Partial>::looks;
    const int self = push.barrier.self;
    typename tsr_sum_of<Partial>::sum sum[TSR_ROW_BATCH] = {};
    bool first = true;
    for (int next = 0; next < push.barrier.n_devices;) {
        uint64_t words[LOOKS][B], *from[LOOKS] = {};
        int device[LOOKS]; /* -1: none is left */
        TSR_UNROLL
        for (int k = 0; k < LOOKS; k++) {
            while (next < push.barrier.n_devices && !(push.contributors >> next & 1))
                next++;
            device[k] = next < push.barrier.n_devices ? next++ : -1;
            if (device[k] == self)
                load_words<Partial>(reduction.parts[part], round, at, reduction.n, words[k]);
            else if (device[k] >= 0) {
                from[k] = region_of(push, device[k], self, announced, device[k]) + at;
                look_at_words<B>(from[k], round.n - at, words[k]);
            }
        }
        TSR_UNROLL
        for (int k = 0; k < LOOKS; k++) {
            if (device[k] < 0)
                continue;
            if (device[k] != self)
                take_words<B>(push, from[k], round.n - at, words[k], aborted);
            TSR_UNROLL
            for (int i = 0; i < TSR_ROW_BATCH; i++) {
                const auto value = element_of(Partial(), words[k][i / E], i % E);
                sum[i] = first ? value : sum_of(sum[i], value);
            }
            first = false;
        }
    }
    tsr_row_batch batch;
    TSR_UNROLL
    for (int i = 0; i < TSR_ROW_BATCH; i++)
        batch.at[i] = tsr_sum_of<Partial>::to_f32(sum[i]);
    return batch;
}

/* -- kernels -- */

template <typename Partial>
static __global__ void __launch_bounds__(PUSH_THREADS)
    push_reduce_kernel(const __grid_constant__ tsr_cuda_push push,
                       const __grid_constant__ tsr_cuda_reduction reduction, int part, int64_t round_words)
{
    constexpr int E = push_word<Partial>::elements;
    __shared__ push_rounds announced;
    bool aborted = false;
    const int64_t n_words = (reduction.n + E - 1) / E, step = gridDim.x * round_words;
    tsr_wait_for_previous();
    push_round round = {blockIdx.x * round_words, 0};
    do { /* at least one round: it is a barrier as well */
        const int64_t left = n_words - round.first;
        round.n = (int)(left < 0 ? 0 : left < round_words ? left : round_words);
        begin_round(push, &announced);
        send_words<Partial>(push, reduction, part, round, announced);
        for (int at = (int)threadIdx.x; at < round.n; at += push_word<Partial>::batch * PUSH_THREADS) {
            const tsr_row_batch sum =
                sum_words<Partial>(push, reduction, part, round, announced, at, aborted);
            const int64_t i = (round.first + at) * E;
            TSR_UNROLL
            for (int j = 0; j < TSR_ROW_BATCH; j++) {
                const int place = j / E * PUSH_THREADS * E + j % E; /* from i on */
                if (place < (round.n - at) * E && place < reduction.n - i)
                    reduction.y[i + place] =
                        reduction.residual ? sum.at[j] + reduction.residual[i + place] : sum.at[j];
            }
        }
        aborted = aborted || !await_round(push, announced);
        round.first += step;
    } while (round.first < n_words);
}

/* One block per row and round, as push_reduce_kernel divides such a message, in the order of rms_norm.cu.
 * Exact partials only: a word is an element. */
static __global__ void __launch_bounds__(PUSH_THREADS)
    push_norm_kernel(const __grid_constant__ tsr_cuda_push push,
                     const __grid_constant__ tsr_cuda_reduction reduction, int part,
                     const __grid_constant__ tsr_op_rms_norm norm)
{
    __shared__ push_rounds announced;
    __shared__ float shared[TSR_ROW_WARPS];
    bool aborted = false;
    if (norm.weight)
        tsr_prefetch(norm.weight, norm.n);
    tsr_wait_for_previous();
    for (int64_t r = blockIdx.x; r < norm.n_rows; r += gridDim.x) {
        const push_round round = {r * norm.n, (int)norm.n};
        float sum = 0.0f;
        begin_round(push, &announced);
        send_words<int64_t>(push, reduction, part, round, announced);
        for (int first = (int)threadIdx.x; first < norm.n; first += TSR_ROW_STEP) {
            tsr_row_batch residual = {};
            if (reduction.residual)
                residual = tsr_row_load(reduction.residual + round.first, first, norm.n);
            const tsr_row_batch value =
                sum_words<int64_t>(push, reduction, part, round, announced, first, aborted);
            sum = tsr_store_row(reduction, norm, round.first, first, residual, value, sum);
        }
        aborted = aborted || !await_round(push, announced);
        if (r + gridDim.x >= norm.n_rows) {
            __syncthreads(); /* one thread's call is the block's, and others may still wait */
            tsr_start_next();
        }
        tsr_norm_row(norm, reduction.y + round.first, sum, norm.y + round.first, shared);
    }
}

/* -- narrow words -- */

/* What makes EMPTY of the words that no pair of sums has. */
#define LOW_FLIP  (~UINT64_C(0x4000000040000000))
#define HIGH_FLIP UINT64_C(0x7fffffff7fffffff)

/* The two sums of a word. */
struct narrow_pair {
    int64_t at[2];
};

TSR_DEVICE narrow_pair load_pair(const void *part, int64_t word, int64_t n)
{
    const int64_t *sums = static_cast<const int64_t *>(part) + 2 * word;
    return {{sums[0], 2 * word + 1 < n ? sums[1] : 0}};
}

TSR_DEVICE uint64_t both(uint32_t first, uint32_t second)
{
    return (uint64_t)second << 32 | first;
}

TSR_DEVICE void send_word(uint64_t *to, uint64_t word)
{
    tsr_on_link(to);
    tsr_store_relaxed_u64(to, word);
}

/* All of the thread's own words to all other devices. */
TSR_DEVICE void send_narrow(const tsr_cuda_push &push, const tsr_cuda_reduction &reduction, int part,
                            push_round round, const push_rounds &announced)
{
    const tsr_cuda_barrier &m = push.barrier;
    for (int at = (int)threadIdx.x; part >= 0 && at < round.n; at += PUSH_THREADS) {
        const narrow_pair own = load_pair(reduction.parts[part], round.first + at, reduction.n);
        const bool is_wide = tsr_wire_is_wide(own.at[0]) || tsr_wire_is_wide(own.at[1]);
        const uint64_t low = both(tsr_wire_low(own.at[0]), tsr_wire_low(own.at[1]));
        const uint64_t high =
            both((uint32_t)(own.at[0] >> TSR_WIRE_LOW_BITS), (uint32_t)(own.at[1] >> TSR_WIRE_LOW_BITS));
        for (int other = 0; other < m.n_devices; other++) {
            if (other == m.self || !(m.participants >> other & 1))
                continue;
            uint64_t *to = region_of(push, m.self, other, announced, other) + at;
            send_word(to, low ^ LOW_FLIP);
            if (is_wide)
                send_word(to + push.region / 2, high ^ HIGH_FLIP);
        }
    }
}

/* The word at `from`, once it has arrived; makes room for others. */
TSR_DEVICE uint64_t take_word(const tsr_cuda_push &push, uint64_t *from, bool &aborted)
{
    uint64_t word[1] = {tsr_load_relaxed_u64(from)};
    take_words<1>(push, from, 1, word, aborted);
    return word[0];
}

/* Sum e of a pair; `high` counts where it is wide. */
TSR_DEVICE int64_t narrow_sum(uint64_t low, uint64_t high, int e)
{
    return tsr_wire_sum_of((uint32_t)(low >> (32 * e)), (int32_t)(high >> (32 * e)));
}

static __global__ void __launch_bounds__(PUSH_THREADS)
    push_narrow_kernel(const __grid_constant__ tsr_cuda_push push,
                       const __grid_constant__ tsr_cuda_reduction reduction, int part, int64_t round_words)
{
    __shared__ push_rounds announced;
    const int self = push.barrier.self;
    const int64_t n_words = (reduction.n + 1) / 2, step = gridDim.x * round_words;
    bool aborted = false;
    tsr_wait_for_previous();
    push_round round = {blockIdx.x * round_words, 0};
    do {
        const int64_t left = n_words - round.first;
        round.n = (int)(left < 0 ? 0 : left < round_words ? left : round_words);
        begin_round(push, &announced);
        send_narrow(push, reduction, part, round, announced);
        for (int at = (int)threadIdx.x; at < round.n; at += PUSH_THREADS) {
            const int64_t i = 2 * (round.first + at);
            narrow_pair sum = {};
            if (part >= 0)
                sum = load_pair(reduction.parts[part], round.first + at, reduction.n);
            for (int d = 0; d < push.barrier.n_devices; d++) {
                if (d == self || !(push.contributors >> d & 1))
                    continue;
                uint64_t *from = region_of(push, d, self, announced, d) + at, high = 0;
                const uint64_t low = take_word(push, from, aborted) ^ LOW_FLIP;
                if (low & both(TSR_WIRE_WIDE, TSR_WIRE_WIDE))
                    high = take_word(push, from + push.region / 2, aborted) ^ HIGH_FLIP;
                TSR_UNROLL
                for (int e = 0; e < 2; e++)
                    sum.at[e] = sum_of(sum.at[e], narrow_sum(low, high, e));
            }
            TSR_UNROLL
            for (int e = 0; e < 2; e++)
                if (i + e < reduction.n) {
                    const float value = tsr_fixed_value(sum.at[e]);
                    reduction.y[i + e] = reduction.residual ? value + reduction.residual[i + e] : value;
                }
        }
        aborted = aborted || !await_round(push, announced);
        round.first += step;
    } while (round.first < n_words);
}

/* -- launchers -- */

static int64_t at_most(int64_t n, int64_t most)
{
    return n < most ? n : most;
}

template <typename Partial>
static tsr_status launch_reduce(const tsr_cuda_push *push, const tsr_cuda_reduction *reduction, int part,
                                const tsr_cuda_stream *s)
{
    const int64_t per_block = push->row > 0 ? push->row : ELEMENTS_PER_BLOCK;
    const int64_t blocks = (reduction->n + per_block - 1) / per_block;
    const int64_t grid = blocks < 1 ? 1 : at_most(blocks, push->barrier.max_blocks);
    const int64_t n_words = (reduction->n + push_word<Partial>::elements - 1) / push_word<Partial>::elements;
    const int64_t round_words =
        push->row > 0 ? push->row : at_most((n_words + grid - 1) / grid, push->region);
    return tsr_cuda_result(TSR_LAUNCH_EARLY((push_reduce_kernel<Partial>), dim3((unsigned)grid),
                                            dim3(PUSH_THREADS), 0, s, *push, *reduction, part, round_words),
                           "push_reduce_kernel");
}

static tsr_status launch_narrow(const tsr_cuda_push *push, const tsr_cuda_reduction *reduction, int part,
                                const tsr_cuda_stream *s)
{
    const int64_t blocks = (reduction->n + ELEMENTS_PER_BLOCK - 1) / ELEMENTS_PER_BLOCK;
    const int64_t grid = at_most(blocks, push->barrier.max_blocks), n_words = (reduction->n + 1) / 2;
    return tsr_cuda_result(TSR_LAUNCH_EARLY(push_narrow_kernel, dim3((unsigned)grid), dim3(PUSH_THREADS), 0,
                                            s, *push, *reduction, part,
                                            at_most((n_words + grid - 1) / grid, push->region / 2)),
                           "push_narrow_kernel");
}

extern "C" tsr_status tsr_cuda_push_reduce(const tsr_cuda_push *push, const tsr_cuda_reduction *reduction,
                                           int part, const tsr_op_rms_norm *norm, const tsr_cuda_stream *s)
{
    if (norm)
        return tsr_cuda_result(
            TSR_LAUNCH_EARLY(push_norm_kernel,
                             dim3((unsigned)at_most(norm->n_rows, push->barrier.max_blocks)),
                             dim3(PUSH_THREADS), 0, s, *push, *reduction, part, *norm),
            "push_norm_kernel");
    switch (reduction->type) {
    case TSR_REDUCE_EXACT:
        return push->narrow ? launch_narrow(push, reduction, part, s)
                            : launch_reduce<int64_t>(push, reduction, part, s);
    case TSR_REDUCE_F32:
        return launch_reduce<float>(push, reduction, part, s);
    case TSR_REDUCE_BF16:
        return launch_reduce<tsr_bfloat>(push, reduction, part, s);
    }
    return tsr_cuda_result(cudaErrorNotSupported, "push_reduce_kernel");
}
