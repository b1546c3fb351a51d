/* Text and colours of SVG pictures; see bench/svg.h. */
#include "bench/svg.h"

#include <stdbool.h>
#include <string.h>

/* Colours are repeated in every rule, since SVG renderers (librsvg 2.54) do not support CSS variables. */
typedef struct palette {
    const char *ink, *soft, *line, *card, *page, *a, *b, *c, *best;
} palette;

static void print_rules(const palette *p, FILE *out)
{
    const struct {
        const char *class, *colour;
    } shapes[] = {{"a", p->a}, {"b", p->b}, {"c", p->c}, {"best", p->best}, {"ink", p->ink}};
    fprintf(out, "svg text{fill:%s}\nsvg .soft{fill:%s}\nsvg .grid{stroke:%s}\n", p->ink, p->soft, p->line);
    fprintf(out, "svg .card{fill:%s}\nsvg .page{fill:%s}\n", p->card, p->page);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        fprintf(out, "svg .%s{stroke:%s;fill:%s}\n", shapes[i].class, shapes[i].colour, shapes[i].colour);
    fprintf(out, ":root{--ink:%s;--soft:%s;--line:%s;--card:%s;--page:%s;--best:%s}\n", p->ink, p->soft,
            p->line, p->card, p->page, p->best);
}

void svg_style(FILE *out)
{
    static const palette light = {"#1c2430", "#5b6675", "#d5dbe3", "#ffffff", "#f3f5f8",
                                  "#1767c5", "#c2570c", "#8793a3", "#11803f"};
    static const palette dark = {"#e6eaf0", "#a3aebd", "#38424f", "#1b222b", "#12171d",
                                 "#6aaef7", "#f2a15f", "#76828f", "#5fcf8b"};
    fprintf(out, "svg text{font:12px system-ui,-apple-system,'Segoe UI',Roboto,sans-serif}\n"
                 "svg .soft{font-size:11px}\nsvg .title{font-size:14px;font-weight:600}\n");
    print_rules(&light, out);
    fprintf(out, "@media screen and (prefers-color-scheme:dark){\n"); /* paper is light */
    print_rules(&dark, out);
    fprintf(out, "}\n:root{color-scheme:light dark}\nsvg .open{fill:none}\nsvg .bar{stroke:none}\n");
}

void svg_escape(const char *text, FILE *out)
{
    for (; *text; text++)
        switch (*text) {
        case '&':
            fputs("&amp;", out);
            break;
        case '<':
            fputs("&lt;", out);
            break;
        case '>':
            fputs("&gt;", out);
            break;
        case '"':
            fputs("&quot;", out);
            break;
        default:
            fputc((unsigned char)*text < ' ' ? ' ' : *text, out); /* XML does not allow control characters */
        }
}

static const char *const class_names[] = {"", "soft", "title"};
static const double sizes[] = {12, 11, 14 * 1.12 /* bold */};
static const char ellipsis[] = "\342\200\246";

/* Of a character, in parts of the font's size: those of DejaVu Sans, the widest of the usual fonts, rounded
 * up. */
static double char_width(unsigned char c)
{
    return c >= 0x80                            ? 1
           : strchr("ijlI'|.,:;! ", c)          ? 0.34
           : strchr("ftr()[]{}-/\\\"", c)       ? 0.46
           : strchr("mMwW%@", c)                ? 1
           : (c >= 'A' && c <= 'Z') || c == '&' ? 0.79
                                                : 0.65;
}

/* The bytes of the text that fit into the width. */
static size_t fitting(svg_font font, double width, const char *text)
{
    size_t bytes = 0;
    for (double used = 0; text[bytes];) {
        used += sizes[font] * char_width((unsigned char)text[bytes]);
        if (used > width)
            return bytes;
        for (bytes++; ((unsigned char)text[bytes] & 0xC0) == 0x80;)
            bytes++; /* the rest of a UTF-8 character */
    }
    return bytes;
}

double svg_text_width(svg_font font, const char *text)
{
    double width = 0;
    for (; *text; text++)
        if (((unsigned char)*text & 0xC0) != 0x80)
            width += sizes[font] * char_width((unsigned char)*text);
    return width;
}

void svg_text(FILE *out, double x, double y, svg_anchor anchor, svg_font font, double width, const char *text)
{
    static const char *const anchors[] = {"start", "middle", "end"};
    char part[1024];
    size_t bytes = fitting(font, width, text);
    bool cut = text[bytes] != '\0';
    if (cut)
        bytes = fitting(font, width - svg_text_width(font, ellipsis), text);
    fprintf(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" class=\"%s\">", x, y, anchors[anchor],
            class_names[font]);
    if (cut) {
        fprintf(out, "<title>");
        svg_escape(text, out);
        fprintf(out, "</title>");
    }
    snprintf(part, sizeof part, "%.*s%s", (int)bytes, text, cut ? ellipsis : "");
    svg_escape(part, out);
    fprintf(out, "</text>\n");
}
