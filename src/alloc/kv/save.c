/* Writing sequences to a file.
 *
 * The file is written under another name in the same folder, synchronised with the disk and then renamed. An
 * interruption at any time leaves the previous file. */
#include "alloc/kv/saved.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "alloc/kv/state.h"
#include "core/checksum.h"
#include "core/mem.h"

typedef struct saving {
    tsr_kv *kv;
    const char *path; /* of the final file, for messages */
    FILE *file;
    tsr_saved_header header;
    tsr_saved_sequence *sequences; /* [header.n_sequences] */
    unsigned char *page;           /* bytes of the largest page */
    uint64_t n_pages;              /* bytes written so far */
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

/* -- what is shared -- */

/* The number of positions up to the end of the last page that two sequences share. All earlier pages hold the
 * same tokens, even if a sequence no longer has them. */
static int64_t same_pages(const tsr_kv *kv, int group, int seq, int parent)
{
    tsr_kv_span mine, theirs;
    const int32_t *pages = tsr_kv_pages(kv, group, seq, &mine);
    const int32_t *others = tsr_kv_pages(kv, group, parent, &theirs);
    for (int i = TSR_MIN(mine.end, theirs.end); i-- > TSR_MAX(mine.first, theirs.first);)
        if (pages[i] == others[i])
            return (i + 1) * tsr_kv_page_positions(kv, group);
    return 0;
}

/* The number of tokens in the pages that two sequences share. */
static int64_t shared_tokens(const tsr_kv *kv, int seq, int parent)
{
    int64_t same = 0;
    for (int g = 0; g < tsr_kv_n_groups(kv); g++)
        same = TSR_MAX(same, same_pages(kv, g, seq, parent));
    int64_t length = tsr_kv_length(kv, seq), other = tsr_kv_length(kv, parent);
    int64_t tokens = TSR_MIN(same, TSR_MIN(length, other));
    return tokens == length ? tokens : tokens / TSR_KV_PAGE_TOKENS * TSR_KV_PAGE_TOKENS;
}

/* The earlier sequence of the file that shares most with this one. */
static void find_parent(saving *s, uint32_t index)
{
    tsr_saved_sequence *sequence = &s->sequences[index];
    for (uint32_t i = 0; i < index; i++) {
        int64_t shared = shared_tokens(s->kv, sequence->id, s->sequences[i].id);
        if (shared <= sequence->shared)
            continue;
        sequence->shared = shared;
        sequence->parent = (int32_t)i;
    }
}

/* The sequences that the caller named, or all that are not empty. */
static tsr_status list_sequences(saving *s, const int *seqs, int n_seqs)
{
    tsr_status status = TSR_OK;
    int n_all = s->kv->n_seq_max, n = seqs ? n_seqs : n_all;
    if (seqs && n_seqs < 1)
        return tsr_fail(TSR_ERR_INVALID, "%d sequences to save; at least one is needed", n_seqs);
    TSR_TRY(tsr_mem_array((size_t)n, sizeof *s->sequences, "sequences to save", &s->sequences));
    for (int i = 0; i < n; i++) {
        int id = seqs ? seqs[i] : i;
        TSR_TRY(tsr_kv_check_seq(s->kv, id));
        if (!seqs && tsr_kv_length(s->kv, id) == 0)
            continue;
        s->sequences[s->header.n_sequences] = tsr_saved_sequence_of(s->kv, id);
        find_parent(s, s->header.n_sequences++);
    }
out:
    return status;
}

/* -- writing -- */

static tsr_status write_header(saving *s)
{
    tsr_status status = TSR_OK;
    size_t bytes = s->header.n_sequences * sizeof *s->sequences;
    uint64_t sum = tsr_hash_words(tsr_hash_words(0, &s->header, sizeof s->header), s->sequences, bytes);
    TSR_TRY(put(s, &s->header, sizeof s->header));
    TSR_TRY(put(s, s->sequences, bytes));
    TSR_TRY(put(s, &sum, sizeof sum));
out:
    return status;
}

/* Write s->page as the next page of the file. */
static tsr_status write_page(saving *s, size_t bytes)
{
    tsr_status status = TSR_OK;
    uint64_t sum = tsr_hash_words(s->n_pages++, s->page, bytes);
    TSR_TRY(put(s, s->page, bytes));
    TSR_TRY(put(s, &sum, sizeof sum));
out:
    return status;
}

static tsr_status write_group(saving *s, uint32_t index, uint32_t group)
{
    tsr_status status = TSR_OK;
    tsr_kv_span span = tsr_saved_span(&s->header, s->sequences, index, group);
    for (int p = span.first; p < span.end; p++) {
        if (tsr_saved_is_shared(&s->header, s->sequences, index, group, p))
            continue;
        TSR_TRY(tsr_kv_page_get(s->kv, (int)group, s->sequences[index].id, p, s->page));
        TSR_TRY(write_page(s, (size_t)s->header.groups[group].page_bytes));
    }
out:
    return status;
}

static tsr_status write_pages(saving *s)
{
    tsr_status status = TSR_OK;
    for (uint32_t i = 0; i < s->header.n_sequences; i++) {
        for (uint32_t g = 0; g < s->header.n_groups; g++)
            TSR_TRY(write_group(s, i, g));
        if (s->header.state_bytes > 0 && s->sequences[i].length > 0) {
            TSR_TRY(tsr_kv_state_get(s->kv, s->sequences[i].id, s->page));
            TSR_TRY(write_page(s, (size_t)s->header.state_bytes));
        }
    }
out:
    return status;
}

/* Write the file, synchronise it with the disk, and rename it. */
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

/* Every process writes the file. Processes with a common file system write the same bytes to the same
 * place. */
static tsr_status save(tsr_kv *kv, const int *seqs, int n_seqs, uint64_t model, const char *path)
{
    tsr_status status = TSR_OK;
    saving s = {.kv = kv, .path = path};
    char *fresh = NULL;
    int fd = -1;
    s.header = tsr_saved_header_of(kv, model);
    TSR_TRY(list_sequences(&s, seqs, n_seqs));
    TSR_TRY(tsr_mem_array(tsr_saved_page_bytes(&s.header), 1, "a KV page", &s.page));
    size_t bytes = strlen(path) + sizeof ".XXXXXX";
    TSR_TRY(tsr_mem_array(bytes, 1, "a file name", &fresh));
    snprintf(fresh, bytes, "%s.XXXXXX", path);
    fd = mkostemp(fresh, O_CLOEXEC);
    s.file = fd >= 0 ? fdopen(fd, "w") : NULL;
    status = s.file ? write_file(&s, fresh) : fail_write(&s);
    if (status != TSR_OK && fd >= 0)
        unlink(fresh);
out:
    if (s.file)
        fclose(s.file); /* nothing can fail after the fsync */
    else if (fd >= 0)
        close(fd);
    tsr_mem_free(fresh);
    tsr_mem_free(s.page);
    tsr_mem_free(s.sequences);
    return status;
}

tsr_status tsr_kv_save(tsr_kv *kv, const int *seqs, int n_seqs, uint64_t model, const char *path)
{
    if (!kv)
        return tsr_fail(TSR_ERR_INVALID, "tsr_kv_save: the KV region is NULL");
    tsr_status status = path ? TSR_OK : tsr_fail(TSR_ERR_INVALID, "saving sequences: path must not be NULL");
    status = tsr_saved_agree_on(kv, seqs, n_seqs, status, "saving sequences");
    if (status == TSR_OK)
        status =
            tsr_processes_agree(kv->rt->processes, save(kv, seqs, n_seqs, model, path), "saving sequences");
    return status;
}
