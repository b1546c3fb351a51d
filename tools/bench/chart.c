/* Charts as SVG; see bench/chart.h. */
#include "bench/chart.h"

#include <math.h>
#include <string.h>

#include "bench/svg.h"

/* The drawing area: bars use the whole width, a curve has axes at both sides. Key and title are above
 * `top`. */
enum { PITCH = 34, MARGIN = 14, AXIS = 52, CURVE_HEIGHT = 188, BELOW = 42, FOOTER = 16 };
static const double top = 58, bar_top = 16, bar_height = 10;

double chart_nice_step(double most)
{
    double power = pow(10, floor(log10(most / 5))), ratio = most / 5 / power;
    return power * (ratio <= 1 ? 1 : ratio <= 2 ? 2 : ratio <= 5 ? 5 : 10);
}

int chart_height(const chart *c)
{
    int area = c->is_curve ? CURVE_HEIGHT : c->n * PITCH;
    return (int)top + area + BELOW + (*c->footer ? FOOTER : 0);
}

static void line(FILE *out, const char *class, double x1, double y1, double x2, double y2)
{
    fprintf(out, "<line class=\"%s\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n", class, x1, y1, x2,
            y2);
}

static void rect(FILE *out, const char *class, double x, double y, double width, double height)
{
    fprintf(out, "<rect class=\"%s\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/>\n", class, x, y,
            width, height);
}

static void circle(FILE *out, const char *class, double x, double y, double radius)
{
    fprintf(out, "<circle class=\"%s\" cx=\"%.1f\" cy=\"%.1f\" r=\"%.1f\"/>\n", class, x, y, radius);
}

/* A spread, horizontal in bars and vertical in curves. */
static void whisker(FILE *out, const char *class, double x1, double y1, double x2, double y2)
{
    double across_x = y1 == y2 ? 0 : 3, across_y = y1 == y2 ? 3 : 0;
    line(out, class, x1, y1, x2, y2);
    line(out, class, x1 - across_x, y1 - across_y, x1 + across_x, y1 + across_y);
    line(out, class, x2 - across_x, y2 - across_y, x2 + across_x, y2 + across_y);
}

/* A diamond; beyond the end of the axis a triangle that points there. */
static void predicted(FILE *out, double x, double y, bool beyond, bool upwards)
{
    const char *points = !beyond ? "l4,4l-4,4l-4,-4z" : upwards ? "l4,7l-8,0z" : "m0,0l0,8l5,-4z";
    fprintf(out, "<path class=\"b open\" stroke-width=\"1.5\" d=\"M%.1f,%.1f%s\"/>\n", x,
            y - (upwards && beyond ? 0 : 4), points);
}

static void draw_key(const chart *c, FILE *out)
{
    double x = MARGIN, y = 37;
    for (int k = 0; k < CHART_KEYS && c->keys[k].text; k++) {
        const char *shape = c->keys[k].shape;
        if (strcmp(shape, "spread") == 0)
            whisker(out, "ink", x, y, x + 12, y);
        else if (strcmp(shape, "predicted") == 0)
            predicted(out, x + 6, y, false, false);
        else if (strcmp(shape, "ring") == 0)
            circle(out, "ink open", x + 6, y, 5);
        else {
            char class[16];
            snprintf(class, sizeof class, "%s bar", shape);
            rect(out, class, x, y - 5, 10, 10);
        }
        svg_text(out, x + 16, y + 4, SVG_START, SVG_SOFT, CHART_WIDTH - MARGIN - x - 16, c->keys[k].text);
        x += 24 + svg_text_width(SVG_SOFT, c->keys[k].text);
    }
}

static void begin_title(const chart_point *p, FILE *out)
{
    fprintf(out, "<g><title>");
    svg_escape(p->label, out);
    fprintf(out, ": ");
    svg_escape(p->note, out);
    fprintf(out, "</title>\n");
}

/* -- bars -- */

static void draw_bar(const chart *c, const chart_point *p, double y, FILE *out)
{
    static const char *const classes[CHART_PARTS] = {"a bar", "b bar", "c bar"};
    const double left = MARGIN, right = CHART_WIDTH - MARGIN, scale = (right - left) / c->most;
    double x = left, note = svg_text_width(SVG_SOFT, p->note);
    begin_title(p, out);
    svg_text(out, left, y + 11, SVG_START, SVG_SOFT, right - left - note - 10, p->label);
    svg_text(out, right, y + 11, SVG_END, SVG_SOFT, note + 1, p->note);
    y += bar_top;
    for (double value = 0; value <= c->most * 1.001; value += c->step)
        line(out, "grid", left + value * scale, y - 2, left + value * scale, y + bar_height + 2);
    for (int i = 0; i < CHART_PARTS; i++) {
        double width = p->parts[i] * scale;
        if (width > 0) /* at least a pixel, to be seen */
            rect(out, p->best ? "best bar" : classes[i], x, y, fmax(width, 1), bar_height);
        x += width;
    }
    if (p->frame > 0)
        rect(out, "grid open", left, y - 1, p->frame * scale, bar_height + 2);
    if (p->high > p->low)
        whisker(out, "ink", left + p->low * scale, y + bar_height / 2, left + p->high * scale,
                y + bar_height / 2);
    if (p->predicted > 0)
        predicted(out, left + fmin(p->predicted, c->most) * scale, y + bar_height / 2, p->predicted > c->most,
                  false);
    fprintf(out, "</g>\n");
}

static void draw_bars(const chart *c, FILE *out)
{
    const double left = MARGIN, right = CHART_WIDTH - MARGIN, bottom = top + c->n * PITCH;
    for (int i = 0; i < c->n; i++)
        draw_bar(c, &c->points[i], top + i * PITCH, out);
    for (double value = 0; value <= c->most * 1.001; value += c->step) {
        char text[32];
        double x = left + value / c->most * (right - left);
        snprintf(text, sizeof text, "%g", value);
        svg_text(out, x, bottom + 14,
                 x < left + 20    ? SVG_START
                 : x > right - 20 ? SVG_END
                                  : SVG_MIDDLE,
                 SVG_SOFT, 80, text);
    }
}

/* -- a curve -- */

typedef struct plane {
    double left, right, top, bottom, x_low, x_high, most;
} plane;

static double x_at(const plane *p, double x)
{
    return p->left + (x - p->x_low) / (p->x_high - p->x_low) * (p->right - p->left);
}

static double y_at(const plane *p, double value)
{
    return p->bottom - value / p->most * (p->bottom - p->top);
}

/* The x axis shows the range of the points, and some room at both sides. */
static plane make_plane(const chart *c, double *x_step)
{
    plane p = {AXIS, CHART_WIDTH - AXIS, top + 12, top + CURVE_HEIGHT, 1, 0, c->most};
    for (int i = 0; i < c->n; i++) {
        p.x_low = fmin(p.x_low, c->points[i].x);
        p.x_high = fmax(p.x_high, c->points[i].x);
    }
    *x_step = chart_nice_step(fmax(p.x_high - p.x_low, 0.01));
    p.x_low = fmax(0, *x_step * floor(p.x_low / *x_step - 0.1));
    p.x_high = fmin(1, *x_step * ceil(p.x_high / *x_step + 0.1));
    return p;
}

static void draw_grid(const chart *c, const plane *p, double x_step, FILE *out)
{
    char text[32];
    svg_text(out, MARGIN, p->top - 12, SVG_START, SVG_SOFT, CHART_WIDTH / 2.0, c->axis);
    svg_text(out, CHART_WIDTH - MARGIN, p->top - 12, SVG_END, SVG_SOFT, CHART_WIDTH / 2.0 - MARGIN,
             c->second_axis);
    for (double value = 0; value <= c->most * 1.001; value += c->step) {
        double y = y_at(p, value);
        line(out, "grid", p->left, y, p->right, y);
        snprintf(text, sizeof text, "%g %%", value);
        svg_text(out, p->left - 6, y + 4, SVG_END, SVG_SOFT, AXIS, text);
        snprintf(text, sizeof text, "%.*f", c->most * c->second < 20 ? 1 : 0, value * c->second);
        svg_text(out, p->right + 6, y + 4, SVG_START, SVG_SOFT, AXIS - 6, text);
    }
    for (double x = p->x_low; x <= p->x_high + x_step * 0.001; x += x_step) {
        snprintf(text, sizeof text, "%g %%", round(1e4 * x) / 100);
        line(out, "grid", x_at(p, x), p->bottom, x_at(p, x), p->bottom + 4);
        svg_text(out, x_at(p, x), p->bottom + 16, SVG_MIDDLE, SVG_SOFT, 60, text);
    }
}

/* Predictions beyond the axis leave the picture at its top, where an <svg> element cuts them. */
static void draw_predictions(const chart *c, const plane *p, FILE *out)
{
    fprintf(out,
            "<svg x=\"0\" y=\"%.1f\" width=\"%d\" height=\"%d\"><polyline class=\"b open\" "
            "stroke-dasharray=\"5 4\" points=\"",
            p->top, CHART_WIDTH, (int)(p->bottom - p->top));
    for (int i = 0; i < c->n; i++)
        if (c->points[i].predicted > 0)
            fprintf(out, "%.1f,%.1f ", x_at(p, c->points[i].x), y_at(p, c->points[i].predicted) - p->top);
    fprintf(out, "\"/></svg>\n");
}

static void draw_curve(const chart *c, FILE *out)
{
    double x_step;
    const plane p = make_plane(c, &x_step);
    draw_grid(c, &p, x_step, out);
    draw_predictions(c, &p, out);
    fprintf(out, "<polyline class=\"a open\" stroke-width=\"1.5\" points=\"");
    for (int i = 0; i < c->n; i++)
        fprintf(out, "%.1f,%.1f ", x_at(&p, c->points[i].x), y_at(&p, c->points[i].parts[0]));
    fprintf(out, "\"/>\n");
    for (int i = 0; i < c->n; i++) {
        const chart_point *point = &c->points[i];
        double x = x_at(&p, point->x), y = y_at(&p, point->parts[0]);
        begin_title(point, out);
        if (point->high > point->low)
            whisker(out, "ink", x, y_at(&p, point->low), x, y_at(&p, point->high));
        circle(out, point->best ? "best" : "a", x, y, 3.5);
        if (point->ring)
            circle(out, "ink open", x, y, 6.5);
        if (point->predicted > 0)
            predicted(out, x, y_at(&p, fmin(point->predicted, c->most)), point->predicted > c->most, true);
        fprintf(out, "</g>\n");
    }
}

void chart_draw(const chart *c, int x, int y, FILE *out)
{
    const double middle = CHART_WIDTH / 2.0, width = CHART_WIDTH - 2 * MARGIN;
    const int height = chart_height(c);
    fprintf(
        out,
        "<svg class=\"panel\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" "
        "role=\"img\" "
        "xmlns=\"http://www.w3.org/2000/svg\">\n<rect class=\"card\" width=\"%d\" height=\"%d\" rx=\"8\"/>\n",
        x, y, CHART_WIDTH, height, CHART_WIDTH, height, CHART_WIDTH, height);
    svg_text(out, MARGIN, 22, SVG_START, SVG_TITLE, width, c->title);
    if (c->n == 0) {
        svg_text(out, middle, 60, SVG_MIDDLE, SVG_SOFT, width, "not measured");
    } else {
        int below = height - (*c->footer ? FOOTER : 0) - 10;
        draw_key(c, out);
        if (c->is_curve) {
            draw_curve(c, out);
            svg_text(out, middle, below, SVG_MIDDLE, SVG_SOFT, width, c->x_axis);
        } else {
            draw_bars(c, out);
            svg_text(out, middle, below, SVG_MIDDLE, SVG_SOFT, width, c->axis);
        }
        svg_text(out, MARGIN, height - 10, SVG_START, SVG_SOFT, width, c->footer);
    }
    fprintf(out, "</svg>\n");
}
