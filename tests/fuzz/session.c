/* Loading saved sequences. The input is a file's table of sequences and its pages: [n] [n sequences]
 * [pages]; header and checksums are added here, since no mutation would find them. What loads is used:
 * decoded upon, cut, saved. */
#include "fuzz.h"

#include <tsr/tsr.h>

#include "alloc/kv/saved.h"
#include "core/checksum.h"
#include "core/mem.h"
#include "fuzz/model.h"
#include "model/session/session.h"

enum { MAX_SEQUENCES = 4, MAX_FILE = 1 << 16 };

static tsr_model *model(void)
{
    static tsr_model *opened;
    tsr_runtime *rt = NULL;
    tsr_runtime_config runtime = tsr_runtime_config_default();
    tsr_model_config config = tsr_model_config_default();
    struct synth_model_config synth = fuzz_model(NULL);
    char path[64];
    if (opened)
        return opened;
    int fd = fuzz_file("", 0, path);
    synth_model_write(&synth, path);
    runtime.devices = "host:2,threads=1";
    config.session.n_ctx = 64;
    config.session.n_batch = 8;
    config.session.n_seq_max = MAX_SEQUENCES;
    if (tsr_runtime_open(&runtime, &rt) != TSR_OK || tsr_model_open(rt, path, &config, &opened) != TSR_OK)
        abort();
    close(fd);
    return opened;
}

static void put(unsigned char *file, size_t *at, const void *bytes, size_t n)
{
    if (*at + n > MAX_FILE)
        return;
    memcpy(file + *at, bytes, n);
    *at += n;
}

/* Returns its length. */
static size_t make_file(const tsr_session *session, const uint8_t *data, size_t bytes, unsigned char *file)
{
    tsr_saved_header header = tsr_saved_header_of(session->kv, tsr_model_fingerprint(session->model));
    tsr_saved_sequence sequences[MAX_SEQUENCES + 1] = {{0}};
    size_t at = 0, page_bytes = header.groups[0].page_bytes;
    header.n_sequences = data[0] % (MAX_SEQUENCES + 2);
    size_t n = TSR_MIN(bytes - 1, header.n_sequences * sizeof *sequences);
    memcpy(sequences, data + 1, n);
    put(file, &at, &header, sizeof header);
    put(file, &at, sequences, header.n_sequences * sizeof *sequences);
    uint64_t sum = tsr_hash_words(tsr_hash_words(0, &header, sizeof header), sequences,
                                  header.n_sequences * sizeof *sequences);
    put(file, &at, &sum, sizeof sum);
    data += 1 + n;
    bytes -= 1 + n;
    for (uint64_t page = 0; bytes; page++) {
        unsigned char copy[MAX_FILE] = {0};
        n = TSR_MIN(bytes, page_bytes);
        memcpy(copy, data, n);
        sum = tsr_hash_words(page, copy, page_bytes);
        put(file, &at, copy, page_bytes);
        put(file, &at, &sum, sizeof sum);
        data += n;
        bytes -= n;
    }
    return at;
}

static void use(tsr_session *session)
{
    static const int32_t token = 3;
    float logits[8];
    for (int seq = 0; seq < MAX_SEQUENCES; seq++) {
        tsr_batch batch = {.n_tokens = 1, .tokens = &token, .seqs = &seq};
        if (tsr_session_length(session, seq) == 0)
            continue;
        (void)fuzz_ok(tsr_session_decode(session, &batch, logits));
        (void)fuzz_ok(tsr_session_trim(session, seq, tsr_session_length(session, seq) / 2));
    }
    (void)fuzz_ok(tsr_session_compact(session));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static unsigned char file[MAX_FILE];
    char path[64];
    tsr_session *session = NULL;
    if (bytes < 1 || bytes > MAX_FILE / 2)
        return 0;
    if (tsr_session_create(model(), &session) != TSR_OK)
        abort();
    int fd = fuzz_file(file, make_file(session, data, bytes, file), path);
    if (fuzz_ok(tsr_session_load(session, NULL, 0, path)))
        use(session);
    tsr_session_destroy(session);
    close(fd);
    return 0;
}
