/* Writing sequences to a file.
 *
 * The file is written beside its place under another name, brought to the disk and then renamed: whatever
 * interrupts that leaves the file that was there before. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/mem.h"
#include "model/session_file.h"

typedef struct saving {
    tsr_session *session;
    const char *path; /* the final one, for messages */
    FILE *file;
    tsr_saved_header header;
    tsr_saved_sequence *sequences; /* [header.n_sequences] */
    unsigned char *page;           /* [header.page_bytes] */
} saving;

static tsr_status fail_write(const saving *s)
{
    return tsr_fail(TSR_ERR_IO, "cannot write '%s': %s; what was there before is unchanged", s->path,
                    strerror(errno));
}

static tsr_status put(saving *s, const void *bytes, size_t n)
{
    return fwrite(bytes, 1, n, s->file) == n ? TSR_OK : fail_write(s);
}

/* ---- what is shared -------------------------------------------------------------------------- */

/* Tokens that two sequences have in pages of both, as the file counts them. */
static int64_t shared_tokens(const tsr_kv *kv, int seq, int parent)
{
    int n, n_parent, same = 0;
    const int32_t *pages = tsr_kv_pages(kv, seq, &n), *others = tsr_kv_pages(kv, parent, &n_parent);
    while (same < n && same < n_parent && pages[same] == others[same])
        same++;
    int64_t length = tsr_kv_length(kv, seq), other = tsr_kv_length(kv, parent);
    int64_t tokens = TSR_MIN((int64_t)same * TSR_KV_PAGE_TOKENS, TSR_MIN(length, other));
    return tokens == length ? tokens : tokens / TSR_KV_PAGE_TOKENS * TSR_KV_PAGE_TOKENS;
}

/* The sequence before this one in the file with which it shares most. */
static void find_parent(saving *s, uint32_t index)
{
    tsr_saved_sequence *sequence = &s->sequences[index];
    for (uint32_t i = 0; i < index; i++) {
        int64_t shared = shared_tokens(s->session->kv, sequence->id, s->sequences[i].id);
        if (shared <= sequence->shared)
            continue;
        sequence->shared = shared;
        sequence->parent = (int32_t)i;
    }
}

/* The asked-for sequences, or all that are not empty. */
static tsr_status list_sequences(saving *s, const int *seqs, int n_seqs)
{
    tsr_status status = TSR_OK;
    int n_all = s->session->model->config.n_seq_max, n = seqs ? n_seqs : n_all;
    if (seqs && n_seqs < 1)
        return tsr_fail(TSR_ERR_INVALID, "%d sequences to save; at least one is needed", n_seqs);
    TSR_TRY(tsr_mem_array((size_t)n, sizeof *s->sequences, "sequences to save", &s->sequences));
    for (int i = 0; i < n; i++) {
        int id = seqs ? seqs[i] : i;
        TSR_TRY(tsr_session_check_seq(s->session, id));
        int64_t length = tsr_kv_length(s->session->kv, id);
        if (!seqs && length == 0)
            continue;
        s->sequences[s->header.n_sequences] = (tsr_saved_sequence){.id = id, .parent = -1, .length = length};
        find_parent(s, s->header.n_sequences++);
    }
out:
    return status;
}

/* ---- writing --------------------------------------------------------------------------------- */

static tsr_status write_header(saving *s)
{
    tsr_status status = TSR_OK;
    size_t bytes = s->header.n_sequences * sizeof *s->sequences;
    uint64_t sum = tsr_checksum(tsr_checksum(0, &s->header, sizeof s->header), s->sequences, bytes);
    TSR_TRY(put(s, &s->header, sizeof s->header));
    TSR_TRY(put(s, s->sequences, bytes));
    TSR_TRY(put(s, &sum, sizeof sum));
out:
    return status;
}

static tsr_status write_pages(saving *s)
{
    tsr_status status = TSR_OK;
    uint64_t number = 0;
    for (uint32_t i = 0; i < s->header.n_sequences; i++) {
        int first, n = tsr_saved_pages(&s->sequences[i], TSR_KV_PAGE_TOKENS, &first);
        for (int p = first; p < first + n; p++, number++) {
            TSR_TRY(tsr_kv_page_get(s->session->kv, s->sequences[i].id, p, s->page));
            uint64_t sum = tsr_checksum(number, s->page, s->header.page_bytes);
            TSR_TRY(put(s, s->page, s->header.page_bytes));
            TSR_TRY(put(s, &sum, sizeof sum));
        }
    }
out:
    return status;
}

/* Written, on the disk, and in its place. */
static tsr_status write_file(saving *s, const char *fresh)
{
    tsr_status status = TSR_OK;
    TSR_TRY(write_header(s));
    TSR_TRY(write_pages(s));
    if (fflush(s->file) != 0 || fsync(fileno(s->file)) != 0 || rename(fresh, s->path) != 0)
        status = fail_write(s);
out:
    return status;
}

tsr_status tsr_session_save(tsr_session *session, const int *seqs, int n_seqs, const char *path)
{
    tsr_status status = TSR_OK;
    saving s = {.session = session, .path = path};
    char *fresh = NULL;
    int fd = -1;
    if (!session || !path)
        return tsr_fail(TSR_ERR_INVALID, "tsr_session_save: session and path must not be NULL");
    s.header = tsr_saved_header_of(session);
    TSR_TRY(list_sequences(&s, seqs, n_seqs));
    TSR_TRY(tsr_mem_array(s.header.page_bytes, 1, "a KV page", &s.page));
    size_t bytes = strlen(path) + sizeof ".XXXXXX";
    TSR_TRY(tsr_mem_array(bytes, 1, "a file name", &fresh));
    snprintf(fresh, bytes, "%s.XXXXXX", path);
    fd = mkstemp(fresh);
    s.file = fd >= 0 ? fdopen(fd, "w") : NULL;
    status = s.file ? write_file(&s, fresh) : fail_write(&s);
    if (status != TSR_OK && fd >= 0)
        unlink(fresh);
out:
    if (s.file)
        fclose(s.file); /* after the fsync there is nothing left to fail */
    else if (fd >= 0)
        close(fd);
    tsr_mem_free(fresh);
    tsr_mem_free(s.page);
    tsr_mem_free(s.sequences);
    return status;
}
