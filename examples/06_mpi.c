/* 06: one model over several processes, on one machine or many. Each process brings its own devices; all of
 * them make the same calls and get the same logits, which here every process compares with what its own
 * machine computes alone: the same bits.
 *
 *     mpirun -n 2 build/bin/06_mpi
 *     mpirun -n 4 --map-by numa --bind-to numa build/bin/06_mpi model.gguf host:1
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tsr/mpi.h>
#include <tsr/tsr.h>

#define TRY(call)                                                        \
    do {                                                                 \
        if ((call) != TSR_OK) {                                          \
            fprintf(stderr, "%s failed: %s\n", #call, tsr_last_error()); \
            goto out;                                                    \
        }                                                                \
    } while (0)

enum { N_TOKENS = 16 };

/* The logits after a few tokens; the caller frees them. NULL after saying why. */
static float *decode(const char *path, const char *devices, const tsr_transport *transport,
                     int64_t *n_vocab_out)
{
    tsr_runtime *rt = NULL;
    tsr_model *model = NULL;
    tsr_session *session = NULL;
    float *logits = NULL;
    tsr_model_info info;
    tsr_runtime_config rc = tsr_runtime_config_default();
    tsr_model_config mc = tsr_model_config_default();
    float even[TSR_MAX_DEVICES];
    int32_t tokens[N_TOKENS];
    bool done = false;

    rc.devices = devices;
    rc.transport = transport; /* NULL: alone */
    TRY(tsr_runtime_open(&rc, &rt));
    mc.session.n_ctx = 256;
    mc.split.tensor_split = even; /* the planner would leave devices out for a model this small */
    mc.split.n_tensor_split = tsr_runtime_n_devices(rt);
    for (int d = 0; d < mc.split.n_tensor_split; d++)
        even[d] = 1;
    TRY(tsr_model_open(rt, path, &mc, &model));
    TRY(tsr_session_create(model, &session));
    tsr_model_get_info(model, &info);
    logits = malloc((size_t)info.n_vocab * sizeof *logits);
    if (!logits)
        goto out;
    for (int i = 0; i < N_TOKENS; i++)
        tokens[i] = 100 + i;
    tsr_batch batch = {.n_tokens = N_TOKENS, .tokens = tokens};
    TRY(tsr_session_decode(session, &batch, logits));
    *n_vocab_out = info.n_vocab;
    done = true;
out:
    tsr_session_destroy(session);
    tsr_model_close(model);
    tsr_runtime_close(rt);
    if (!done) {
        free(logits);
        logits = NULL;
    }
    return logits;
}

int main(int argc, char **argv)
{
    const char *path = argc > 1 ? argv[1] : "examples/models/glossary-7m-Q8_0.gguf";
    const char *devices = argc > 2 ? argv[2] : "host:1,threads=1"; /* of each process */
    tsr_transport *mpi = NULL;
    int64_t n_vocab = 0;
    float *together = NULL, *alone = NULL;
    bool same = false;
    const char *problem = tsr_mpi_transport_create(NULL, &mpi);
    if (problem) {
        fprintf(stderr, "%s\n", problem);
        return 1;
    }
    together = decode(path, devices, mpi, &n_vocab);
    alone = decode(path, devices, NULL, &n_vocab);
    if (together && alone) {
        same = memcmp(together, alone, (size_t)n_vocab * sizeof *alone) == 0;
        printf("process %d of %d: logits[0] = %.9g, %s\n", mpi->rank, mpi->n_ranks, (double)together[0],
               same ? "the same bits as alone" : "other bits than alone");
    }
    free(together);
    free(alone);
    fflush(stdout);
    tsr_mpi_transport_destroy(mpi);
    return same ? 0 : 1;
}
