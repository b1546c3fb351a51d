/* A small XML document as a tree, for machine descriptions that hwloc does not read. Expat does the
 * parsing; this module keeps elements and attributes, no text, and bounds the size of hostile files. */
#ifndef TSR_TOPO_IMPORT_XML_H
#define TSR_TOPO_IMPORT_XML_H

#include "core/status.h"

enum { TSR_XML_MAX_DEPTH = 64, TSR_XML_MAX_ELEMENTS = 1 << 16, TSR_XML_MAX_ATTRIBUTES = 64 };

typedef struct tsr_xml_attribute {
    const char *name, *value;
} tsr_xml_attribute;

typedef struct tsr_xml_element {
    const char *name;
    int line; /* from 1 */
    int n_attributes;
    const tsr_xml_attribute *attributes;
    struct tsr_xml_element *parent, *first_child, *last_child, *next;
} tsr_xml_element;

/* All elements, freed together. Texts are UTF-8. */
typedef struct tsr_xml tsr_xml;

/* `name` is the file's, for messages. TSR_ERR_FORMAT names it, the line and the problem: not well formed,
 * a DOCTYPE (not needed, and entities can make small files huge), or beyond the bounds above.
 * TSR_ERR_MEMORY. */
tsr_status tsr_xml_parse(const char *text, size_t bytes, const char *name, tsr_xml **xml_out);

/* NULL is fine. */
void tsr_xml_free(tsr_xml *xml);

const tsr_xml_element *tsr_xml_root(const tsr_xml *xml);

/* The attribute's value, NULL if there is none. */
const char *tsr_xml_attribute_of(const tsr_xml_element *element, const char *name);

#endif
