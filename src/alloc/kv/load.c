/* Reading sequences from a file.
 *
 * The whole header is checked before the region is changed. Then each sequence is read: its shared part is a
 * fork of another sequence, the rest are pages. A page is put in place after its checksum was found right. */
#include "alloc/kv/saved.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "alloc/kv/state.h"
#include "core/checksum.h"
#include "core/input/file.h"
#include "core/mem.h"

typedef struct loading {
    tsr_kv *kv;
    uint64_t model;
    const char *path;
    FILE *file;
    tsr_saved_header header;
    tsr_saved_sequence *sequences; /* [header.n_sequences]; id: its number in this region */
    uint32_t n_begun;              /* sequences that hold tokens so far */
    uint64_t n_pages;              /* bytes read so far */
    unsigned char *page;           /* bytes of the largest page */
} loading;

/* A short read is the end of the file, or an error of the system. */
static tsr_status get(loading *l, void *bytes, size_t n)
{
    if (fread(bytes, 1, n, l->file) == n)
        return TSR_OK;
    if (ferror(l->file))
        return tsr_fail(TSR_ERR_IO, "cannot read '%s': %s", l->path, strerror(errno));
    return tsr_fail(TSR_ERR_FORMAT, "'%s' ends too early: it was cut off; save the sequences again", l->path);
}

/* -- the header -- */

/* Read the fields that all versions of the format have first. */
static tsr_status read_version(loading *l)
{
    tsr_status status = TSR_OK;
    tsr_saved_header *h = &l->header;
    size_t begin = offsetof(tsr_saved_header, n_sequences);
    TSR_TRY(get(l, h, begin));
    if (h->magic != TSR_SAVED_MAGIC)
        return tsr_fail(TSR_ERR_FORMAT,
                        "'%s' holds no saved sequences; pass a file of tsr_kv_save() or tsr_session_save()",
                        l->path);
    if (h->version != TSR_SAVED_VERSION)
        return tsr_fail(
            TSR_ERR_UNSUPPORTED,
            "'%s' has version %u of the format; this library reads %d; compute the sequences anew", l->path,
            h->version, TSR_SAVED_VERSION);
    TSR_TRY(get(l, (unsigned char *)h + begin, sizeof *h - begin));
out:
    return status;
}

static tsr_status check_header(const loading *l)
{
    const tsr_saved_header *h = &l->header;
    tsr_saved_header mine = tsr_saved_header_of(l->kv, l->model);
    if (h->model != mine.model)
        return tsr_fail(TSR_ERR_INVALID,
                        "'%s' was saved with another model (%016llx, and this one is %016llx); load it "
                        "with that model",
                        l->path, (unsigned long long)h->model, (unsigned long long)mine.model);
    if (h->type_k != mine.type_k || h->type_v != mine.type_v)
        return tsr_fail(TSR_ERR_INVALID,
                        "'%s' holds %s keys and %s values, the KV region %s and %s; set type_k and type_v "
                        "to the types of the file",
                        l->path, tsr_type_name((tsr_type)h->type_k), tsr_type_name((tsr_type)h->type_v),
                        tsr_type_name((tsr_type)mine.type_k), tsr_type_name((tsr_type)mine.type_v));
    if (h->state_bytes != mine.state_bytes)
        return tsr_fail(TSR_ERR_FORMAT,
                        "'%s': recurrent states of %llu bytes per sequence; this KV region has %llu", l->path,
                        (unsigned long long)h->state_bytes, (unsigned long long)mine.state_bytes);
    if (h->n_groups != mine.n_groups || memcmp(h->groups, mine.groups, sizeof h->groups) != 0)
        return tsr_fail(
            TSR_ERR_FORMAT,
            "'%s': pages of %llu bytes and %llu tokens in %u groups of layers; this KV region has %llu, "
            "%llu and %u",
            l->path, (unsigned long long)h->groups[0].page_bytes,
            (unsigned long long)h->groups[0].page_positions, h->n_groups,
            (unsigned long long)mine.groups[0].page_bytes, (unsigned long long)mine.groups[0].page_positions,
            mine.n_groups);
    return TSR_OK;
}

static tsr_status check_sequence(const loading *l, uint32_t index)
{
    const tsr_saved_sequence *s = &l->sequences[index];
    bool whole = s->shared == s->length || s->shared % TSR_KV_PAGE_TOKENS == 0;
    bool parented = s->parent >= 0 ? s->parent < (int32_t)index && s->shared > 0 &&
                                         s->shared <= l->sequences[s->parent].length
                                   : s->parent == -1 && s->shared == 0;
    bool kept = s->length >= 0 && s->length <= INT32_MAX;
    for (uint32_t g = 0; g < TSR_KV_MAX_GROUPS && kept; g++)
        kept = g < l->header.n_groups ? tsr_kv_saved_valid(l->kv, (int)g, s->length, s->first[g])
                                      : s->first[g] == 0;
    if (!kept || s->shared > s->length || !whole || !parented)
        return tsr_fail(TSR_ERR_FORMAT,
                        "'%s': entry %u (sequence %d, %lld token%s, %lld shared) makes no sense", l->path,
                        index, s->id, (long long)s->length, tsr_plural(s->length), (long long)s->shared);
    return TSR_OK;
}

/* Choose the sequence of the region: seqs[index], or the number in the file. */
static tsr_status place_sequence(loading *l, const int *seqs, uint32_t index)
{
    tsr_saved_sequence *s = &l->sequences[index];
    s->id = seqs ? seqs[index] : s->id;
    tsr_status status = tsr_kv_check_seq(l->kv, s->id);
    if (status != TSR_OK)
        return tsr_fail_in(status, "'%s'", l->path);
    if (tsr_kv_length(l->kv, s->id) > 0)
        return tsr_fail(TSR_ERR_INVALID, "'%s': sequence %d is not empty; trim it to 0 first", l->path,
                        s->id);
    for (uint32_t i = 0; i < index; i++)
        if (l->sequences[i].id == s->id)
            return tsr_fail(TSR_ERR_INVALID, "'%s': sequence %d is named twice", l->path, s->id);
    return TSR_OK;
}

static tsr_status read_header(loading *l, const int *seqs, int n_seqs)
{
    tsr_status status = TSR_OK;
    uint64_t sum, written;
    TSR_TRY(read_version(l));
    TSR_TRY(check_header(l));
    uint32_t n = l->header.n_sequences;
    if (seqs && n_seqs != (int64_t)n)
        return tsr_fail(TSR_ERR_INVALID, "'%s' holds %u sequence%s, and there is room for %d", l->path, n,
                        tsr_plural(n), n_seqs);
    if (n > (uint32_t)l->kv->n_seq_max)
        return tsr_fail(TSR_ERR_FULL, "'%s' holds %u sequence%s, the KV region %d; set a larger n_seq_max",
                        l->path, n, tsr_plural(n), l->kv->n_seq_max);
    size_t bytes = n * sizeof *l->sequences;
    TSR_TRY(tsr_mem_array(TSR_MAX(n, 1u), sizeof *l->sequences, "saved sequences", &l->sequences));
    TSR_TRY(get(l, l->sequences, bytes));
    TSR_TRY(get(l, &written, sizeof written));
    sum = tsr_hash_words(tsr_hash_words(0, &l->header, sizeof l->header), l->sequences, bytes);
    if (sum != written)
        return tsr_fail(TSR_ERR_FORMAT, "'%s': the checksum of the header is wrong; the file is damaged",
                        l->path);
    for (uint32_t i = 0; i < n; i++) {
        TSR_TRY(check_sequence(l, i));
        TSR_TRY(place_sequence(l, seqs, i));
    }
out:
    return status;
}

/* -- sequences -- */

/* Read the next page of the file. */
static tsr_status read_page(loading *l, size_t bytes)
{
    tsr_status status = TSR_OK;
    uint64_t written;
    TSR_TRY(get(l, l->page, bytes));
    TSR_TRY(get(l, &written, sizeof written));
    if (written != tsr_hash_words(l->n_pages, l->page, bytes))
        return tsr_fail(TSR_ERR_FORMAT, "'%s': the checksum of page %llu is wrong; the file is damaged",
                        l->path, (unsigned long long)l->n_pages);
    l->n_pages++;
out:
    return status;
}

static tsr_status read_group(loading *l, uint32_t index, uint32_t group)
{
    tsr_status status = TSR_OK;
    tsr_kv_span span = tsr_saved_span(&l->header, l->sequences, index, group);
    for (int p = span.first; p < span.end; p++)
        if (!tsr_saved_is_shared(&l->header, l->sequences, index, group, p)) {
            TSR_TRY(read_page(l, (size_t)l->header.groups[group].page_bytes));
            TSR_TRY(tsr_kv_page_put(l->kv, (int)group, l->sequences[index].id, p, l->page));
        }
out:
    return status;
}

static tsr_status read_sequence(loading *l, uint32_t index)
{
    tsr_status status = TSR_OK;
    const tsr_saved_sequence *s = &l->sequences[index];
    tsr_kv_saved saved = {
        .length = s->length, .shared = s->shared, .parent = s->parent >= 0 ? l->sequences[s->parent].id : -1};
    memcpy(saved.first, s->first, sizeof saved.first);
    TSR_TRY(tsr_kv_restore(l->kv, s->id, &saved));
    l->n_begun++;
    for (uint32_t g = 0; g < l->header.n_groups; g++)
        TSR_TRY(read_group(l, index, g));
    if (l->header.state_bytes > 0 && s->length > 0) {
        TSR_TRY(read_page(l, (size_t)l->header.state_bytes));
        TSR_TRY(tsr_kv_state_put(l->kv, s->id, l->page));
    }
out:
    return status;
}

static tsr_status read_all(loading *l, const int *seqs, int n_seqs)
{
    tsr_status status = TSR_OK;
    TSR_TRY(read_header(l, seqs, n_seqs));
    TSR_TRY(tsr_mem_array(tsr_saved_page_bytes(&l->header), 1, "a KV page", &l->page));
    for (uint32_t i = 0; i < l->header.n_sequences; i++)
        TSR_TRY(read_sequence(l, i));
    if (fgetc(l->file) != EOF)
        status = tsr_fail(TSR_ERR_FORMAT, "'%s' goes on behind its last page; the file is damaged", l->path);
out:
    return status;
}

static tsr_status read_file(loading *l, const int *seqs, int n_seqs)
{
    int64_t bytes;
    int fd;
    tsr_status status = tsr_file_open(l->path, &fd, &bytes);
    if (status != TSR_OK)
        return errno == ENOENT ? TSR_ERR_NOT_FOUND : status;
    l->file = fdopen(fd, "r");
    if (!l->file) {
        close(fd);
        return tsr_fail(TSR_ERR_MEMORY, "out of host memory: a buffer to read '%s'", l->path);
    }
    status = read_all(l, seqs, n_seqs);
    fclose(l->file);
    return status;
}

tsr_status tsr_kv_load(tsr_kv *kv, const int *seqs, int n_seqs, uint64_t model, const char *path)
{
    loading l = {.kv = kv, .model = model, .path = path};
    if (!kv)
        return tsr_fail(TSR_ERR_INVALID, "tsr_kv_load: the KV region is NULL");
    tsr_status status = path ? TSR_OK : tsr_fail(TSR_ERR_INVALID, "loading sequences: path must not be NULL");
    status = tsr_saved_agree_on(kv, seqs, n_seqs, status, "loading sequences");
    if (status != TSR_OK)
        return status;
    status = tsr_processes_agree(kv->rt->processes, read_file(&l, seqs, n_seqs), "loading sequences");
    if (status != TSR_OK)
        for (uint32_t i = l.n_begun; i-- > 0;)
            (void)!tsr_kv_remove(kv, l.sequences[i].id);
    tsr_mem_free(l.page);
    tsr_mem_free(l.sequences);
    return status;
}
