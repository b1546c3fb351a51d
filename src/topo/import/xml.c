/* Expat's events -> a tree. Blocks are chained so that the tree can be freed; an element, its attributes
 * and all their texts are one block. */
#include "topo/import/xml.h"

#include <expat.h>
#include <stdalign.h>
#include <stdbool.h>
#include <string.h>

#include "core/mem.h"

struct block {
    struct block *next;
    alignas(max_align_t) tsr_xml_element element;
};

struct tsr_xml {
    struct block *blocks; /* newest first */
    tsr_xml_element *root;
};

struct builder {
    XML_Parser parser;
    const char *name;
    tsr_xml *xml;
    tsr_xml_element *open; /* innermost element that is not closed yet */
    int depth, n_elements;
    tsr_status status; /* the first failure, at which the parser is stopped */
};

/* Expat uses the library's allocator, so its shortages are reported like any other. */
static void *expat_malloc(size_t bytes)
{
    return tsr_mem_calloc(1, bytes);
}

static void *expat_realloc(void *block, size_t bytes)
{
    return tsr_mem_realloc(block, bytes, 1);
}

static const XML_Memory_Handling_Suite expat_memory = {expat_malloc, expat_realloc, tsr_mem_free};

static int line_of(const struct builder *b)
{
    return (int)XML_GetCurrentLineNumber(b->parser);
}

static void stop(struct builder *b, tsr_status status)
{
    b->status = status;
    XML_StopParser(b->parser, XML_FALSE);
}

/* Copy to *at, which advances. Control characters from character references become blanks, since messages
 * quote values and are one line. */
static const char *copy_text(char **at, const char *text)
{
    size_t bytes = strlen(text) + 1;
    char *copy = memcpy(*at, text, bytes);
    for (size_t i = 0; i + 1 < bytes; i++)
        if ((unsigned char)copy[i] < ' ' || copy[i] == 0x7f)
            copy[i] = ' ';
    *at += bytes;
    return copy;
}

/* Copy an element and its texts into a block. */
static struct block *copy_element(const XML_Char *name, const XML_Char **attributes, int n)
{
    size_t head = sizeof(struct block) + (size_t)n * sizeof(tsr_xml_attribute);
    size_t bytes = head + strlen(name) + 1;
    for (int i = 0; i < 2 * n; i++)
        bytes += strlen(attributes[i]) + 1; /* cannot overflow: all texts are in memory already */
    char *memory = tsr_mem_calloc(1, bytes);
    if (!memory)
        return NULL;
    struct block *block = (struct block *)memory;
    tsr_xml_attribute *copies = (tsr_xml_attribute *)(memory + sizeof *block);
    char *text = memory + head;
    block->element.name = copy_text(&text, name);
    for (int i = 0; i < n; i++) {
        copies[i].name = copy_text(&text, attributes[2 * i]);
        copies[i].value = copy_text(&text, attributes[2 * i + 1]);
    }
    block->element.attributes = copies;
    block->element.n_attributes = n;
    return block;
}

static void XMLCALL on_start(void *user, const XML_Char *name, const XML_Char **attributes)
{
    struct builder *b = user;
    int n = 0;
    if (b->status != TSR_OK)
        return;
    while (n <= TSR_XML_MAX_ATTRIBUTES && attributes[2 * n])
        n++;
    if (n > TSR_XML_MAX_ATTRIBUTES || b->depth == TSR_XML_MAX_DEPTH ||
        b->n_elements == TSR_XML_MAX_ELEMENTS) {
        stop(b,
             tsr_fail(TSR_ERR_FORMAT,
                      "machine file '%s', line %d: more than %d levels, %d elements or %d attributes of one; "
                      "the file may be damaged",
                      b->name, line_of(b), TSR_XML_MAX_DEPTH, TSR_XML_MAX_ELEMENTS, TSR_XML_MAX_ATTRIBUTES));
        return;
    }
    struct block *block = copy_element(name, attributes, n);
    if (!block) {
        stop(b, tsr_fail(TSR_ERR_MEMORY, "out of host memory for machine file '%s'", b->name));
        return;
    }
    block->next = b->xml->blocks;
    b->xml->blocks = block;
    tsr_xml_element *element = &block->element;
    element->line = line_of(b);
    element->parent = b->open;
    if (!b->open)
        b->xml->root = element;
    else if (!b->open->first_child)
        b->open->first_child = b->open->last_child = element;
    else
        b->open->last_child = b->open->last_child->next = element;
    b->open = element;
    b->depth++;
    b->n_elements++;
}

static void XMLCALL on_end(void *user, const XML_Char *name)
{
    struct builder *b = user;
    (void)name;
    if (b->status != TSR_OK)
        return;
    b->open = b->open->parent;
    b->depth--;
}

static void XMLCALL on_doctype(void *user, const XML_Char *name, const XML_Char *sysid, const XML_Char *pubid,
                               int has_internal_subset)
{
    struct builder *b = user;
    (void)name, (void)sysid, (void)pubid, (void)has_internal_subset;
    stop(b, tsr_fail(TSR_ERR_FORMAT, "machine file '%s', line %d: a DOCTYPE is not allowed; remove it",
                     b->name, line_of(b)));
}

static tsr_status parse(struct builder *b, const char *text, size_t bytes)
{
    XML_SetUserData(b->parser, b);
    XML_SetElementHandler(b->parser, on_start, on_end);
    XML_SetStartDoctypeDeclHandler(b->parser, on_doctype);
    if (XML_Parse(b->parser, text, (int)bytes, XML_TRUE) == XML_STATUS_OK)
        return TSR_OK;
    enum XML_Error error = XML_GetErrorCode(b->parser);
    if (b->status != TSR_OK)
        return b->status;
    if (error == XML_ERROR_NO_MEMORY)
        return tsr_fail(TSR_ERR_MEMORY, "out of host memory for machine file '%s'", b->name);
    return tsr_fail(TSR_ERR_FORMAT, "machine file '%s', line %d: %s; copy it again", b->name, line_of(b),
                    XML_ErrorString(error));
}

tsr_status tsr_xml_parse(const char *text, size_t bytes, const char *name, tsr_xml **xml_out)
{
    tsr_status status = TSR_OK;
    struct builder b = {.name = name};
    if (bytes > INT32_MAX)
        return tsr_fail(TSR_ERR_FORMAT,
                        "machine file '%s' has %zu bytes, which exceeds the limit; the file may be damaged",
                        name, bytes);
    TSR_TRY(TSR_NEW(&b.xml, "a machine file"));
    b.parser = XML_ParserCreate_MM(NULL, &expat_memory, NULL);
    if (!b.parser) {
        status = tsr_fail(TSR_ERR_MEMORY, "out of host memory for machine file '%s'", name);
        goto out;
    }
    TSR_TRY(parse(&b, text, bytes));
    *xml_out = b.xml;
    b.xml = NULL;
out:
    if (b.parser)
        XML_ParserFree(b.parser);
    tsr_xml_free(b.xml);
    return status;
}

void tsr_xml_free(tsr_xml *xml)
{
    struct block *next;
    for (struct block *block = xml ? xml->blocks : NULL; block; block = next) {
        next = block->next;
        tsr_mem_free(block);
    }
    tsr_mem_free(xml);
}

const tsr_xml_element *tsr_xml_root(const tsr_xml *xml)
{
    return xml->root;
}

const char *tsr_xml_attribute_of(const tsr_xml_element *element, const char *name)
{
    for (int i = 0; i < element->n_attributes; i++)
        if (strcmp(element->attributes[i].name, name) == 0)
            return element->attributes[i].value;
    return NULL;
}
