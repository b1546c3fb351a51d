/* Finds the kind of a description by its content, since file names are unreliable. */
#include "topo/import/machine_file.h"

#include <ctype.h>
#include <string.h>

#include "topo/import/unpack.h"

const char *tsr_xml_root_text(const char *text)
{
    for (const char *p = strchr(text, '<'); p; p = strchr(p + 1, '<')) {
        if (strncmp(p, "<!--", 4) == 0) {
            p = strstr(p, "-->");
            if (!p)
                return NULL;
        } else if (isalpha((unsigned char)p[1])) {
            return p;
        }
    }
    return NULL;
}

static bool begins_with(const char *text, size_t bytes, const char *magic, size_t length)
{
    return bytes >= length && memcmp(text, magic, length) == 0;
}

static bool is_element(const char *root, const char *name)
{
    size_t length = strlen(name);
    return strncmp(root + 1, name, length) == 0 && root[1 + length] && strchr(" \t\r\n/>", root[1 + length]);
}

tsr_machine_kind tsr_machine_kind_of(const char *text, size_t bytes)
{
    if (tsr_unpack_is_archive(text, bytes))
        return TSR_MACHINE_ARCHIVE;
    if (strlen(text) != bytes)
        return TSR_MACHINE_UNKNOWN;
    size_t blanks = strspn(text, " \t\r\n");
    if (begins_with(text, bytes, "\xef\xbb\xbf", 3)) /* UTF-8's byte order mark */
        blanks = 3;
    const char *root = text[blanks] == '<' ? tsr_xml_root_text(text) : NULL;
    if (root)
        return is_element(root, "topology") ? TSR_MACHINE_HWLOC_XML
               : is_element(root, "system") ? TSR_MACHINE_NCCL_XML
                                            : TSR_MACHINE_UNKNOWN;
    if (text[blanks] != '<' && strstr(text, "GPU0"))
        return TSR_MACHINE_NVIDIA_SMI;
    return TSR_MACHINE_UNKNOWN;
}
