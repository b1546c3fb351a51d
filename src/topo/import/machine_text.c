/* The parser of the --machine text: "2x rtx3090 nvlink, 1x rtx4060ti pcie4x8, 1x host 64GiB 50GB/s", "2 nodes
 * of 4x h100 nvswitch, ib 400Gb/s". The grammar is at tsr_topology_parse(). Words are read one by one; every
 * message gives the column of the wrong word. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <tsr/bytes.h>

#include "core/mem.h"
#include "topo/import/machine_file.h"
#include "topo/import/machine_groups.h"
#include "topo/network.h"

enum { WORD_BYTES = 48, MOST_CORES = 512 };

struct parser {
    const char *subject;   /* of messages */
    const char *text, *at; /* at: after the current word */
    const char *word_at;
    char word[WORD_BYTES];
    tsr_machine_text read;
};

/* -- words -- */

/* `what` is the rest of the sentence about the word, without a full stop. */
static tsr_status wrong(const struct parser *p, const char *what)
{
    const char *quote = *p->word ? "'" : "";
    return tsr_fail(TSR_ERR_INVALID, "%s, column %d: %s%s%s %s", p->subject, (int)(p->word_at - p->text) + 1,
                    quote, *p->word ? p->word : "the end", quote, what);
}

/* Read the next word; a comma is a word, the end of the text is "". */
static void next_word(struct parser *p)
{
    while (isspace((unsigned char)*p->at))
        p->at++;
    p->word_at = p->at;
    size_t length = *p->at == ',' ? 1 : strcspn(p->at, ", \t\r\n");
    snprintf(p->word, sizeof p->word, "%.*s", (int)TSR_MIN(length, sizeof p->word - 1), p->at);
    p->at += length;
}

static bool ends_group(const struct parser *p)
{
    return p->word[0] == '\0' || p->word[0] == ',';
}

/* A whole number of at most 6 digits at the start of text; returns its end, or NULL if there is none. */
static const char *whole_number(const char *text, int *value_out)
{
    char *end;
    if (!isdigit((unsigned char)*text) || strspn(text, "0123456789") > 6)
        return NULL;
    *value_out = (int)strtol(text, &end, 10);
    return end;
}

/* "100GB/s" -> 1e11; false if the word is not of that form. */
static bool parse_rate(const char *word, double *bytes_per_s_out)
{
    char bytes[WORD_BYTES];
    size_t length = strlen(word);
    uint64_t value;
    if (length < 5 || strcasecmp(word + length - 2, "/s") != 0)
        return false;
    snprintf(bytes, sizeof bytes, "%.*s", (int)length - 2, word);
    if (tsr_bytes_parse(bytes, &value) != TSR_OK || value < 1000000 || value > UINT64_C(1000000000000000))
        return false;
    *bytes_per_s_out = (double)value;
    return true;
}

/* -- groups -- */

/* Words that follow a card. A memory size may also be part of a name, "A100 80GB PCIe". */
static bool follows_a_card(const char *word)
{
    uint64_t bytes;
    return strncasecmp(word, "nvlink", 6) == 0 || strcasecmp(word, "nvswitch") == 0 ||
           strcasecmp(word, "switch") == 0 || strcasecmp(word, "node") == 0 ||
           (strncasecmp(word, "pcie", 4) == 0 && isdigit((unsigned char)word[4])) ||
           (isdigit((unsigned char)*word) && strpbrk(word, "bB") && tsr_bytes_parse(word, &bytes) == TSR_OK);
}

/* One word or several, as many as denote a card: "rtx3090", "NVIDIA GeForce RTX 3090 Ti". */
static tsr_status parse_card(struct parser *p, tsr_text_group *group)
{
    enum { MOST_WORDS = 6 };
    char name[MOST_WORDS * WORD_BYTES] = "", reason[512];
    const char *first = p->word_at, *end = p->at;
    size_t used = 0, asked = 0; /* of name; up to a word that follows a card */
    if (strcasecmp(p->word, "host") == 0)
        return TSR_OK;
    for (int i = 0; i < MOST_WORDS && !ends_group(p); i++, next_word(p)) {
        bool whole = asked == used && !(i > 0 && follows_a_card(p->word));
        used += (size_t)snprintf(name + used, sizeof name - used, "%s%s", i ? " " : "", p->word);
        const tsr_card *card = tsr_card_exactly(name);
        if (whole)
            asked = used;
        if (card)
            group->card = card;
        if (card || (whole && !group->card))
            end = p->at;
    }
    p->word_at = first;
    p->at = end;
    if (group->card)
        return TSR_OK;
    name[asked] = '\0';
    tsr_status status = tsr_card_typed(name, &group->card);
    if (status == TSR_OK)
        return status;
    snprintf(reason, sizeof reason, "%s", tsr_last_error());
    return tsr_fail(status, "machine, column %d: %s; a number of cards is written '2x rtx3090'",
                    (int)(first - p->text) + 1, reason);
}

/* A bridge joins few cards; modules (SXM) are joined by their board. */
static tsr_status check_wiring(const struct parser *p, const tsr_text_group *group, bool is_switch)
{
    const tsr_card *card = group->card;
    char what[160];
    int rest = TSR_MIN(group->count - card->bridge, card->bridge);
    if (card->n_nvlinks == 0)
        return wrong(p, "follows a card that has no NVLink");
    if (group->count < 2)
        return wrong(p, "joins the cards of a group, but this group has one; write e.g. '2x rtx3090 nvlink'");
    if (card->bridge && is_switch)
        return wrong(p, "takes modules on a board, and this card takes a bridge; write nvlink");
    if (card->bridge && group->count > card->bridge) {
        snprintf(what, sizeof what, "joins at most %d cards %s, by a bridge; write '%dx %s nvlink, %dx %s%s'",
                 card->bridge, card->key, card->bridge, card->key, rest, card->key,
                 rest > 1 ? " nvlink" : "");
        return wrong(p, what);
    }
    if (!is_switch && !p->word[6] && card->n_nvlinks / (group->count - 1) == 0)
        return wrong(p, "cannot join each pair: there are more pairs than links; write nvswitch");
    return TSR_OK;
}

/* "nvlink", "nvlink2", "nvswitch". */
static tsr_status parse_wiring(struct parser *p, tsr_text_group *group)
{
    bool is_switch = strcasecmp(p->word, "nvswitch") == 0;
    int value;
    if (!is_switch && strncasecmp(p->word, "nvlink", 6) != 0)
        return wrong(p, "is unknown; write nvlink or nvswitch");
    tsr_status status = check_wiring(p, group, is_switch);
    if (status != TSR_OK)
        return status;
    group->wiring = is_switch ? TSR_TEXT_NVSWITCH : TSR_TEXT_NVLINK_PAIRS;
    if (is_switch || !p->word[6])
        return TSR_OK;
    const char *rest = whole_number(p->word + 6, &value);
    if (!rest || *rest || value < 1 || value * (group->count - 1) > group->card->n_nvlinks)
        return wrong(p, "asks for more links to each other card than the card has, or is not a number");
    group->n_links = value;
    return TSR_OK;
}

/* "nvlink", "nvlink2", "nvswitch", "switch", "pcie4x8": words of GPUs. *taken_out: the word was one of
 * these. */
static tsr_status parse_gpu_word(struct parser *p, tsr_text_group *group, bool *taken_out)
{
    const char *rest;
    int value;
    *taken_out = true;
    if (strcasecmp(p->word, "switch") == 0) {
        group->behind_switch = true;
        return TSR_OK;
    }
    if (strncasecmp(p->word, "nv", 2) == 0)
        return parse_wiring(p, group);
    if (strncasecmp(p->word, "pcie", 4) == 0) {
        int lanes;
        rest = whole_number(p->word + 4, &value);
        if (!rest || (*rest != 'x' && *rest != 'X') || !(rest = whole_number(rest + 1, &lanes)) || *rest ||
            value < 1 || value > 7 || lanes < 1 || lanes > 16)
            return wrong(p, "is not a PCIe link; write pcie1x1 to pcie7x16, e.g. pcie4x8");
        group->pcie = (tsr_pcie_link){.generation = value, .width = lanes};
        return TSR_OK;
    }
    *taken_out = false;
    return TSR_OK;
}

static tsr_status parse_any_word(struct parser *p, tsr_text_group *group)
{
    int value;
    const char *rest = whole_number(p->word, &value);
    if (parse_rate(p->word, &group->bytes_per_s))
        return TSR_OK;
    if (strcasecmp(p->word, "node") == 0) {
        next_word(p);
        rest = whole_number(p->word, &group->node);
        return rest && !*rest && group->node < TSR_TEXT_SOCKETS
                   ? TSR_OK
                   : wrong(p, "is not a NUMA node; write 'node 0'");
    }
    if (!group->card && rest && strncasecmp(rest, "core", 4) == 0) {
        group->cores = value;
    } else if (rest && !*rest && !group->card) { /* "16 cores" */
        group->cores = value;
        next_word(p);
        if (strncasecmp(p->word, "core", 4) != 0)
            return wrong(p, "follows a bare number; write e.g. '16 cores' or '64GiB'");
    } else if (rest && tsr_bytes_parse(p->word, &group->memory_bytes) == TSR_OK &&
               group->memory_bytes >= UINT64_C(1) << 20 && group->memory_bytes <= UINT64_C(1) << 46) {
        return TSR_OK;
    } else {
        return wrong(p, group->card
                            ? "is unknown; words of a card are nvlink, nvswitch, switch, pcie4x16, node 0, "
                              "24GiB, 900GB/s"
                            : "is unknown; words of a host are 16 cores, 64GiB, 50GB/s");
    }
    return group->cores >= 1 && group->cores <= MOST_CORES ? TSR_OK
                                                           : wrong(p, "is not a number of cores (1 to 512)");
}

/* "2x", with or without a blank before the next word, which is then the current one; without a count 1. */
static tsr_status parse_count(struct parser *p, int *count_out)
{
    int count;
    const char *rest = whole_number(p->word, &count);
    *count_out = 1;
    if (rest && (*rest == 'x' || *rest == 'X')) {
        if (count < 1 || count > TSR_MAX_GPUS)
            return wrong(p, "is not a number of cards (1 to 32)");
        *count_out = count;
        p->at = rest[1] ? p->word_at + (rest + 1 - p->word) : p->at; /* "2xrtx3090" */
        next_word(p);
    } else if (rest && !*rest && count <= TSR_MAX_GPUS) {
        return wrong(p, "is not a card; a number of cards is written '2x rtx3090'");
    }
    if (ends_group(p))
        return wrong(p, "is where a card should be; write e.g. '2x rtx3090 nvlink, 1x host 64GiB'");
    return TSR_OK;
}

static tsr_status parse_group(struct parser *p, int count, tsr_text_group *group)
{
    tsr_status status = TSR_OK;
    *group = (tsr_text_group){.count = count, .node = -1};
    TSR_TRY(parse_card(p, group));
    for (next_word(p); !ends_group(p); next_word(p)) {
        bool taken = false;
        if (group->card)
            TSR_TRY(parse_gpu_word(p, group, &taken));
        if (!taken)
            TSR_TRY(parse_any_word(p, group));
    }
out:
    return status;
}

/* -- nodes and networks -- */

/* A number before one of the units, which have the given sizes; false if the word is not of that form. */
static bool parse_unit(const char *word, const char *const units[], const double sizes[], int n,
                       double *value_out)
{
    char *end;
    if (!isdigit((unsigned char)*word) || strspn(word, "0123456789.") > 9)
        return false;
    double value = strtod(word, &end);
    for (int i = 0; i < n; i++)
        if (strcmp(end, units[i]) == 0) {
            *value_out = value * sizes[i];
            return true;
        }
    return false;
}

static tsr_network_kind network_kind(const char *word)
{
    static const char *const others[] = {[TSR_NETWORK_INFINIBAND] = "infiniband",
                                         [TSR_NETWORK_ROCE] = "rocev2",
                                         [TSR_NETWORK_ETHERNET] = "eth"};
    for (tsr_network_kind kind = TSR_NETWORK_INFINIBAND; kind <= TSR_NETWORK_ETHERNET; kind++)
        if (strcasecmp(word, tsr_network_kind_name(kind)) == 0 || strcasecmp(word, others[kind]) == 0)
            return kind;
    return TSR_NETWORK_NONE;
}

/* "ib 400Gb/s 2us" after its number of adapters. */
static tsr_status parse_network(struct parser *p, int count, tsr_text_network *network)
{
    static const char *const rates[] = {"Mb/s", "Gb/s", "Tb/s", "Mbit/s", "Gbit/s", "Tbit/s"};
    static const double bits[] = {1e6, 1e9, 1e12, 1e6, 1e9, 1e12};
    static const char *const times[] = {"us", "ms"};
    static const double ns[] = {1e3, 1e6};
    double rate;
    *network = (tsr_text_network){.kind = network_kind(p->word), .n_adapters = count};
    next_word(p);
    if (!parse_unit(p->word, rates, bits, 6, &rate) || !(rate >= 1e6 && rate <= 1e14))
        return wrong(p, "is not the rate of a network adapter, in bits; write e.g. 'ib 400Gb/s'");
    network->bytes_per_s = rate / 8;
    next_word(p);
    if (ends_group(p))
        return TSR_OK;
    if (!parse_unit(p->word, times, ns, 2, &network->latency_ns) ||
        !(network->latency_ns >= 100 && network->latency_ns <= 1e9))
        return wrong(p, "is not the latency of a network; write e.g. 'ib 400Gb/s 2us'");
    next_word(p);
    return ends_group(p) ? TSR_OK
                         : wrong(p, "follows a network; write a comma between, e.g. 'ib 400Gb/s, host'");
}

/* The network of all nodes before it that have none. */
static tsr_status take_network(struct parser *p, int count)
{
    tsr_status status = TSR_OK;
    tsr_machine_text *read = &p->read;
    tsr_text_network network;
    const struct parser start = *p;
    bool taken = false;
    if (read->n_nodes == 0 || read->nodes[0].count == 0)
        return wrong(p, "joins nodes, and the text has one machine; write '2 nodes of 4x h100, ib 400Gb/s'");
    if (read->nodes[read->n_nodes - 1].first == read->n_groups)
        return wrong(p,
                     "is where a card or host of the node should be; write '2 nodes of 4x h100, ib 400Gb/s'");
    TSR_TRY(parse_network(p, count, &network));
    if (read->nodes[0].network.kind != TSR_NETWORK_NONE && read->nodes[0].network.kind != network.kind)
        return wrong(&start, "is another kind of network than the first; all nodes are joined by one kind");
    for (int i = 0; i < read->n_nodes; i++)
        if (read->nodes[i].network.kind == TSR_NETWORK_NONE) {
            read->nodes[i].network = network;
            taken = true;
        }
    if (!taken)
        return wrong(&start,
                     "is a second network of the nodes; write '2x ib 400Gb/s' for two adapters of each");
out:
    return status;
}

/* "2 nodes of", "1 node of": the words after it are those of the node. *taken_out: the text had it. */
static tsr_status parse_nodes(struct parser *p, bool *taken_out)
{
    tsr_machine_text *read = &p->read;
    const struct parser start = *p;
    int count = 0, before = 0;
    const char *rest = whole_number(p->word, &count);
    const bool is_number = rest && !*rest;
    *taken_out = false;
    if (rest)
        next_word(p);
    if (strcasecmp(p->word, "node") != 0 && strcasecmp(p->word, "nodes") != 0) {
        *p = start;
        return TSR_OK;
    }
    *taken_out = true;
    for (int i = 0; i < read->n_nodes; i++)
        before += read->nodes[i].count;
    if (!is_number || count < 1 || count > TSR_TEXT_MACHINES - before)
        return wrong(&start, "is not a number of nodes (1 to 32 altogether); write '2 nodes of 4x h100, ib "
                             "400Gb/s'");
    if (read->n_groups > 0 && read->nodes[0].count == 0)
        return wrong(&start, "follows cards of no node; begin the text with '1 node of'");
    if (read->n_nodes > 0 && read->nodes[read->n_nodes - 1].first == read->n_groups)
        return wrong(&start, "follows a node without a card or host; write '1 node of host'");
    next_word(p);
    if (strcasecmp(p->word, "of") != 0)
        return wrong(p, "is where 'of' should be; write '2 nodes of 4x h100, ib 400Gb/s'");
    next_word(p);
    read->nodes[read->n_nodes++] = (tsr_text_nodes){.count = count, .first = read->n_groups};
    return TSR_OK;
}

/* A group, or a network. */
static tsr_status parse_item(struct parser *p)
{
    tsr_status status = TSR_OK;
    tsr_machine_text *read = &p->read;
    bool taken;
    int count;
    TSR_TRY(parse_nodes(p, &taken));
    TSR_TRY(parse_count(p, &count));
    if (network_kind(p->word) != TSR_NETWORK_NONE)
        return take_network(p, count);
    if (read->n_groups == TSR_MAX_GPUS)
        return wrong(p, "exceeds the limit of 32 groups");
    if (read->n_nodes == 0)
        read->nodes[read->n_nodes++] = (tsr_text_nodes){0};
    tsr_text_nodes *nodes = &read->nodes[read->n_nodes - 1];
    TSR_TRY(parse_group(p, count, &read->groups[read->n_groups++]));
    for (int i = nodes->first; i < read->n_groups - 1; i++)
        if (!read->groups[i].card && !read->groups[read->n_groups - 1].card)
            return wrong(p, "comes after a second host; write '2x host' for two sockets");
    nodes->end = read->n_groups;
out:
    return status;
}

static tsr_status parse(struct parser *p)
{
    tsr_status status = TSR_OK;
    int n_machines = 0;
    do {
        next_word(p);
        TSR_TRY(parse_item(p));
    } while (p->word[0] == ',');
    for (int i = 0; i < p->read.n_nodes; i++)
        n_machines += p->read.nodes[i].count;
    if (n_machines > 1 && p->read.nodes[p->read.n_nodes - 1].network.kind == TSR_NETWORK_NONE)
        return wrong(p, "is where a network between the nodes should be; write e.g. ', ib 400Gb/s'");
out:
    return status;
}

tsr_status tsr_topo_read_machine_spec(const char *text, tsr_topology **topo_out)
{
    tsr_status status = TSR_OK;
    tsr_topo_builder *builder = NULL;
    struct parser p = {.subject = "machine", .text = text, .at = text};
    TSR_TRY(tsr_builder_create("--machine", &builder));
    TSR_TRY(parse(&p));
    TSR_TRY(tsr_machine_text_add(&p.read, builder));
    TSR_TRY(tsr_topo_build(builder, topo_out));
out:
    tsr_builder_free(builder);
    return status;
}

tsr_status tsr_network_parse(const char *text, tsr_machine *network_out)
{
    tsr_status status = TSR_OK;
    tsr_text_network network;
    struct parser p = {.subject = "network", .text = text, .at = text};
    tsr_machine read = {0};
    int count;
    next_word(&p);
    if (parse_count(&p, &count) != TSR_OK || network_kind(p.word) == TSR_NETWORK_NONE)
        return wrong(&p, "is not a network; write e.g. 'ib 400Gb/s', '2x roce 100Gb/s' or 'ethernet 25Gb/s'");
    TSR_TRY(parse_network(&p, count, &network));
    if (*p.word)
        return wrong(&p, "follows the network, which is one for all processes; leave the rest out");
    tsr_network_set(network.kind, network.n_adapters, network.bytes_per_s, network.latency_ns, &read);
    *network_out = read;
out:
    return status;
}
