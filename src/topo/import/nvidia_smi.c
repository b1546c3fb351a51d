/* The matrix of `nvidia-smi topo -m` -> a builder.
 *
 *             GPU0    GPU1    NIC0    CPU Affinity    NUMA Affinity
 *     GPU0     X      NV4     PXB     0-23,48-71      0
 *     GPU1    NV4      X      SYS     24-47           1
 *     NIC0    PXB     SYS      X
 *
 * The matrix has no models (lines of `nvidia-smi -L` before it may: "GPU 0: NVIDIA A100-SXM4-40GB (UUID:
 * ...)") and no bus ids, so bus ids are invented in PCI domain ffff. A cell is the level of the PCI tree
 * at which two devices join. Levels are nested, so a PCI tree with the same matrix can be built. A cell
 * with NV# hides the PCIe path; the affinities then decide. The text may have been pasted with tabs turned
 * into blanks, so it is read as words. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "topo/import/builder.h"
#include "topo/import/machine_file.h"

enum {
    MOST_COLUMNS = 2 * TSR_MAX_GPUS + 64,
    WORD_BYTES = 64,
    LIST_BYTES = 5 * TSR_DRAFT_MAX_PUS, /* "0,2,4,...": every CPU listed by number, with up to 4 digits */
    MOST_NVLINKS = 18,
    INVENTED_DOMAIN = 0xffff
};

struct matrix {
    const char *name;
    int n_columns, n_gpus; /* GPUs are the first columns */
    tsr_gpu_path path[TSR_MAX_GPUS][TSR_MAX_GPUS];
    int n_links[TSR_MAX_GPUS][TSR_MAX_GPUS];
    int node[TSR_MAX_GPUS]; /* NUMA number, -1 if not given */
    char affinity[TSR_MAX_GPUS][LIST_BYTES];
    char model[TSR_MAX_GPUS][64];
    bool seen[TSR_MAX_GPUS];
};

/* -- words -- */

/* The next word of the line at *text, which advances; false at the end. Terminal colours count as blanks. */
static bool next_word(const char **text, char *word, size_t bytes)
{
    const char *p = *text;
    for (;;) {
        while (*p == ' ' || *p == '\t' || *p == '\r')
            p++;
        if (*p != '\033')
            break;
        while (*p && *p != '\n' && *p != 'm')
            p++;
        p += *p == 'm';
    }
    size_t n = 0;
    while (*p && !isspace((unsigned char)*p) && *p != '\033') {
        if (n + 1 < bytes)
            word[n++] = *p;
        p++;
    }
    word[n] = '\0';
    *text = p;
    return n > 0;
}

static const char *next_line(const char *line)
{
    const char *end = strchr(line, '\n');
    return end ? end + 1 : line + strlen(line);
}

/* "GPU12" -> 12, otherwise -1. */
static int gpu_number(const char *word)
{
    char *end;
    if (strncmp(word, "GPU", 3) != 0 || !isdigit((unsigned char)word[3]))
        return -1;
    long n = strtol(word + 3, &end, 10);
    return *end == '\0' && n < 1000000 ? (int)n : -1;
}

/* Whether a line is the matrix's head: GPU0, followed by another GPU or, after network cards of any name
 * ("NIC0", "mlx5_0", "hfi1_0"), by "CPU Affinity". */
static bool is_head(const char *line)
{
    char word[WORD_BYTES];
    if (!next_word(&line, word, sizeof word) || strcmp(word, "GPU0") != 0)
        return false;
    while (next_word(&line, word, sizeof word))
        if (strcmp(word, "CPU") == 0 || gpu_number(word) > 0)
            return true;
    return false;
}

/* -- the matrix -- */

static tsr_status read_head(struct matrix *m, const char *line)
{
    char word[WORD_BYTES];
    while (next_word(&line, word, sizeof word) && strcmp(word, "CPU") != 0 && strcmp(word, "NUMA") != 0) {
        int gpu = gpu_number(word);
        if (m->n_columns == MOST_COLUMNS || (gpu >= 0 && gpu >= TSR_MAX_GPUS))
            return tsr_fail(TSR_ERR_FORMAT, "machine file '%s': more than %d GPUs or %d columns", m->name,
                            TSR_MAX_GPUS, MOST_COLUMNS);
        if (gpu >= 0 && (gpu != m->n_gpus || gpu != m->n_columns))
            return tsr_fail(TSR_ERR_FORMAT,
                            "machine file '%s': column %d is %s; GPUs come first and in order", m->name,
                            m->n_columns + 1, word);
        m->n_gpus += gpu >= 0;
        m->n_columns++;
    }
    return TSR_OK;
}

static tsr_status read_cell(struct matrix *m, int row, int column, const char *word)
{
    static const struct {
        const char *word;
        tsr_gpu_path path;
    } words[] = {{"X", TSR_GPU_PATH_SAME},
                 {"PIX", TSR_GPU_PATH_PIX},
                 {"PXB", TSR_GPU_PATH_PXB},
                 {"PHB", TSR_GPU_PATH_PHB},
                 {"NODE", TSR_GPU_PATH_NODE},
                 {"SYS", TSR_GPU_PATH_SYS},
                 {"SOC", TSR_GPU_PATH_SYS} /* until driver 390 */,
                 {"PSB", TSR_GPU_PATH_BOARD}};
    if (strncmp(word, "NV", 2) == 0 && isdigit((unsigned char)word[2])) {
        char *end;
        long n = strtol(word + 2, &end, 10);
        if (*end || n < 1 || n > 4 * MOST_NVLINKS || row == column)
            return tsr_fail(TSR_ERR_FORMAT, "machine file '%s': GPU%d has '%s': not a number of links",
                            m->name, row, word);
        if (column < m->n_gpus)
            m->n_links[row][column] = (int)n;
        return TSR_OK;
    }
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcmp(word, words[i].word) == 0) {
            if ((words[i].path == TSR_GPU_PATH_SAME) != (row == column))
                return tsr_fail(TSR_ERR_FORMAT,
                                "machine file '%s': GPU%d has '%s' in column %d; X marks itself", m->name,
                                row, word, column + 1);
            if (column < m->n_gpus)
                m->path[row][column] = words[i].path;
            return TSR_OK;
        }
    return tsr_fail(TSR_ERR_FORMAT,
                    "machine file '%s': GPU%d has '%s' in column %d; valid are X, NV#, PIX, PXB, PHB, NODE, "
                    "SYS",
                    m->name, row, word, column + 1);
}

/* A list of CPUs, or a word for none ("N/A"). */
static tsr_status check_affinity(const struct matrix *m, int row)
{
    const char *text = m->affinity[row];
    bool good = isalnum((unsigned char)*text);
    while (good && isdigit((unsigned char)*text)) {
        char *end;
        long first = strtol(text, &end, 10), last = first;
        if (*end == '-')
            last = strtol(end + 1, &end, 10);
        good = first <= last && last < TSR_DRAFT_MAX_PUS && (*end == ',' || !*end);
        text = end + (*end == ',');
    }
    if (!good || (*text && text != m->affinity[row]))
        return tsr_fail(TSR_ERR_FORMAT, "machine file '%s': GPU%d has CPU affinity '%.40s'; CPUs are 0 to %d",
                        m->name, row, m->affinity[row], TSR_DRAFT_MAX_PUS - 1);
    return TSR_OK;
}

static tsr_status read_row(struct matrix *m, const char *line)
{
    tsr_status status = TSR_OK;
    char word[WORD_BYTES];
    (void)next_word(&line, word, sizeof word);
    int row = gpu_number(word);
    if (row < 0 || row >= m->n_gpus || m->seen[row])
        return tsr_fail(TSR_ERR_FORMAT, "machine file '%s': a second row, or one without a column: '%.20s'",
                        m->name, word);
    m->seen[row] = true;
    for (int column = 0; column < m->n_columns; column++) {
        if (!next_word(&line, word, sizeof word)) {
            status =
                tsr_fail(TSR_ERR_FORMAT, "machine file '%s': the row of GPU%d ends after %d of %d columns",
                         m->name, row, column, m->n_columns);
            goto out;
        }
        TSR_TRY(read_cell(m, row, column, word));
    }
    if (next_word(&line, m->affinity[row], sizeof m->affinity[row]))
        TSR_TRY(check_affinity(m, row));
    m->node[row] = -1;
    if (next_word(&line, word, sizeof word) && isdigit((unsigned char)word[0])) {
        long node = strtol(word, NULL, 10);
        if (node >= TSR_DRAFT_MAX_PUS) {
            status = tsr_fail(TSR_ERR_FORMAT, "machine file '%s': GPU%d has NUMA affinity '%.40s'", m->name,
                              row, word);
            goto out;
        }
        m->node[row] = (int)node;
    }
out:
    return status;
}

/* "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-...)", the lines of `nvidia-smi -L`. */
static void read_model(struct matrix *m, const char *line)
{
    int number = -1, used = 0;
    if (sscanf(line, "GPU %d: %n", &number, &used) != 1 || number < 0 || number >= TSR_MAX_GPUS || !used)
        return;
    size_t length = strcspn(line + used, "(\n\r");
    while (length > 0 && line[used + (int)length - 1] == ' ')
        length--;
    snprintf(m->model[number], sizeof m->model[number], "%.*s", (int)TSR_MIN(length, (size_t)63),
             line + used);
}

static tsr_status check_symmetry(const struct matrix *m)
{
    for (int a = 0; a < m->n_gpus; a++) {
        if (!m->seen[a])
            return tsr_fail(TSR_ERR_FORMAT,
                            "machine file '%s': GPU%d has a column and no row; the file is cut off", m->name,
                            a);
        for (int b = 0; b < a; b++)
            if (m->path[a][b] != m->path[b][a] || m->n_links[a][b] != m->n_links[b][a])
                return tsr_fail(TSR_ERR_FORMAT,
                                "machine file '%s': GPU%d and GPU%d disagree about their link", m->name, b,
                                a);
    }
    return TSR_OK;
}

static tsr_status read_matrix(struct matrix *m, const char *text)
{
    tsr_status status = TSR_OK;
    if (strncmp(text, "\xef\xbb\xbf", 3) == 0) /* UTF-8's byte order mark */
        text += 3;
    for (const char *line = text; *line; line = next_line(line)) {
        const char *at = line, *first = line + strspn(line, " \t");
        char word[WORD_BYTES];
        if (!m->n_columns && is_head(line)) {
            TSR_TRY(read_head(m, line));
        } else if (strncmp(first, "GPU ", 4) == 0 && !m->n_columns) {
            read_model(m, first);
        } else if (m->n_columns && next_word(&at, word, sizeof word)) {
            if (strncmp(word, "Legend", 6) == 0)
                break;
            if (gpu_number(word) >= 0)
                TSR_TRY(read_row(m, line));
        }
    }
    if (m->n_gpus == 0) {
        status = tsr_fail(TSR_ERR_FORMAT,
                          "machine file '%s' has no matrix; give the whole output of `nvidia-smi topo -m`",
                          m->name);
        goto out;
    }
    TSR_TRY(check_symmetry(m));
out:
    return status;
}

/* -- matrix -> builder -- */

/* Parse "0-23,48-71" into the node's set. Other text ("N/A") is ignored. */
static void add_affinity(const char *text, tsr_builder_node *node)
{
    while (isdigit((unsigned char)*text)) {
        char *end;
        long first = strtol(text, &end, 10), last = first;
        if (*end == '-')
            last = strtol(end + 1, &end, 10);
        for (long pu = first; pu <= last && pu < TSR_DRAFT_MAX_PUS; pu++)
            node->pus[pu / 64] |= UINT64_C(1) << (pu % 64);
        text = end + (*end == ',');
    }
}

/* The builder's node of a GPU: by NUMA number; without one, by affinity. */
static tsr_status node_of(const struct matrix *m, int gpu, tsr_topo_builder *builder,
                          int owner[TSR_DRAFT_MAX_NODES], int *node_out)
{
    tsr_status status = TSR_OK;
    tsr_builder_node *node;
    for (int i = 0; i < builder->n_nodes; i++) {
        int other = owner[i];
        bool same = m->node[gpu] >= 0 && m->node[other] >= 0
                        ? m->node[gpu] == m->node[other]
                        : strcmp(m->affinity[gpu], m->affinity[other]) == 0;
        if (same) {
            *node_out = i;
            return TSR_OK;
        }
    }
    TSR_TRY(tsr_builder_add_node(builder, &node));
    node->os_index = m->node[gpu];
    add_affinity(m->affinity[gpu], node);
    *node_out = builder->n_nodes - 1;
    owner[*node_out] = gpu;
out:
    return status;
}

/* Add a bridge for each set of GPUs that join at `level` or below, if some of them join exactly there,
 * below the bridge in above[]; at the top for every set. `above` is updated to the new bridges. */
static tsr_status add_level(const struct matrix *m, tsr_gpu_path level, const int *node_of_gpu,
                            tsr_topo_builder *builder, int above[TSR_MAX_GPUS])
{
    tsr_status status = TSR_OK;
    int below[TSR_MAX_GPUS];
    for (int g = 0; g < m->n_gpus; g++) {
        int first = g;
        bool just_here = level == TSR_GPU_PATH_PHB;
        for (int other = m->n_gpus - 1; other >= 0; other--) {
            bool meets = other == g || (m->path[g][other] && m->path[g][other] <= level);
            just_here = just_here || (other != g && m->path[g][other] == level);
            if (meets && other < first)
                first = other;
        }
        below[g] = above[g];
        if (first < g) {
            below[g] = below[first];
        } else if (just_here) {
            tsr_pci_bridge *bridge;
            TSR_TRY(tsr_builder_add_bridge(builder, &bridge));
            bridge->parent = above[g];
            bridge->numa_node = node_of_gpu[g];
            if (level != TSR_GPU_PATH_PHB)
                snprintf(bridge->bus_id, sizeof bridge->bus_id, "%04x:fe:%02x.0", INVENTED_DOMAIN,
                         builder->n_bridges & 0x1f);
            below[g] = builder->n_bridges - 1;
        }
    }
    memcpy(above, below, (size_t)m->n_gpus * sizeof *below);
out:
    return status;
}

/* Whether all pairs of GPUs with NVLinks have more links than a GPU can divide among them, hence use
 * switches. A GPU whose fabric did not start may have none. */
static bool is_switched(const struct matrix *m)
{
    int most = 0, n_joined = 0;
    bool joined[TSR_MAX_GPUS] = {false};
    for (int a = 0; a < m->n_gpus; a++) {
        for (int b = 0; b < m->n_gpus; b++) {
            joined[a] = joined[a] || m->n_links[a][b] > 0;
            most = TSR_MAX(most, m->n_links[a][b]);
        }
        n_joined += joined[a];
    }
    for (int a = 0; a < m->n_gpus; a++)
        for (int b = 0; b < m->n_gpus; b++)
            if (a != b && joined[a] && joined[b] && m->n_links[a][b] != most)
                return false;
    return n_joined > 2 && most * (n_joined - 1) > MOST_NVLINKS;
}

static tsr_status add_links(const struct matrix *m, int g, tsr_gpu *gpu)
{
    bool switched = is_switched(m);
    for (int other = 0; other < m->n_gpus; other++) {
        if (m->n_links[g][other] == 0 || (switched && gpu->n_nvlink_ends == 1))
            continue;
        if (gpu->n_nvlink_ends == TSR_MAX_NVLINK_ENDS)
            return tsr_fail(TSR_ERR_FORMAT, "machine file '%s': GPU%d has NVLinks to more than %d others",
                            m->name, g, TSR_MAX_NVLINK_ENDS);
        gpu->nvlink_ends[gpu->n_nvlink_ends++] =
            (tsr_nvlink_end){.kind = switched ? TSR_NVLINK_END_SWITCH : TSR_NVLINK_END_GPU,
                             .gpu = switched ? -1 : other,
                             .n_links = m->n_links[g][other]};
    }
    return TSR_OK;
}

static tsr_status fill_builder(const struct matrix *m, tsr_topo_builder *builder)
{
    tsr_status status = TSR_OK;
    int node[TSR_MAX_GPUS], bridge[TSR_MAX_GPUS], owner[TSR_DRAFT_MAX_NODES];
    for (int g = 0; g < m->n_gpus; g++) {
        TSR_TRY(node_of(m, g, builder, owner, &node[g]));
        bridge[g] = -1;
    }
    for (int level = TSR_GPU_PATH_PHB; level >= TSR_GPU_PATH_BOARD; level--)
        TSR_TRY(add_level(m, (tsr_gpu_path)level, node, builder, bridge));
    for (int g = 0; g < m->n_gpus; g++) {
        tsr_pci_device *pci;
        tsr_gpu *gpu;
        TSR_TRY(tsr_builder_add_pci(builder, &pci));
        snprintf(pci->bus_id, sizeof pci->bus_id, "%04x:%02x:00.0", INVENTED_DOMAIN, g);
        pci->class_id = 0x0302;
        pci->vendor_id = 0x10de;
        pci->numa_node = node[g];
        pci->bridge = bridge[g];
        TSR_TRY(tsr_builder_add_gpu(builder, &gpu));
        memcpy(gpu->bus_id, pci->bus_id, sizeof gpu->bus_id);
        memcpy(gpu->name, m->model[g], sizeof gpu->name);
        gpu->numa_node = node[g];
        TSR_TRY(add_links(m, g, gpu));
        memcpy(builder->pairs[g], (tsr_gpu_pair[TSR_MAX_GPUS]){0}, sizeof builder->pairs[g]);
        for (int other = 0; other < m->n_gpus; other++)
            builder->pairs[g][other].path = m->path[g][other];
    }
    tsr_topo_note(builder->notes, sizeof builder->notes, "bus ids are invented: the matrix has none");
out:
    return status;
}

tsr_status tsr_topo_read_nvidia_smi(const char *text, size_t bytes, const char *name, tsr_topology **topo_out)
{
    tsr_status status = TSR_OK;
    tsr_topo_builder *builder = NULL;
    struct matrix *m = NULL;
    if (strlen(text) != bytes)
        return tsr_fail(TSR_ERR_FORMAT, "machine file '%s' is not text: it contains zero bytes", name);
    TSR_TRY(TSR_NEW(&m, "a matrix of GPUs"));
    TSR_TRY(tsr_builder_create(name, &builder));
    m->name = name;
    TSR_TRY(read_matrix(m, text));
    TSR_TRY(fill_builder(m, builder));
    TSR_TRY(tsr_topo_build(builder, topo_out));
out:
    tsr_builder_free(builder);
    tsr_mem_free(m);
    return status;
}
