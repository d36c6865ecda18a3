/* data/view.c -- see view.h. */
#include "data/view.h"
#include <inttypes.h>
#include <math.h>

/* ---- the settings ------------------------------------------------------------------------------------------------ */
/* Height and width, or one number for both. */
static ddp_status read_size(const char *key, const ddp_list *list, view_size *out, ddp_err *err)
{
    const int64_t *items = list->items;

    if (list->count > 2)
        return ddp_fail(err, DDP_ERR_CONFIG, "%s takes height and width, or one number, not %zu numbers", key,
                        list->count);
    *out = (view_size){items[0], items[list->count - 1]};
    return DDP_OK;
}

static ddp_status read_range(const char *key, const ddp_list *list, double out[2], ddp_err *err)
{
    const double *items = list->items;

    if (list->count != 2 || !(items[0] > 0) || !(items[0] <= items[1]))
        return ddp_fail(err, DDP_ERR_CONFIG, "%s takes the smallest and the largest value, both above 0, as in %s", key,
                        key[0] == 's' ? "scale = 0.08, 1" : "ratio = 0.75, 1.3333333");
    out[0] = items[0];
    out[1] = items[1];
    return DDP_OK;
}

static ddp_status read_resized_crop(view_plan *p, const struct ddp_data_config *c, ddp_err *err)
{
    if (c->random_crop.count + c->center_crop.count + c->resize.count > 0 || c->padding > 0)
        return ddp_fail(
            err, DDP_ERR_CONFIG,
            "random_resized_crop crops and resizes by itself; take resize, padding, random_crop and center_crop out");
    DDP_TRY(read_size("random_resized_crop", &c->random_resized_crop, &p->crop, err));
    DDP_TRY(read_range("scale", &c->scale, p->scale, err));
    DDP_TRY(read_range("ratio", &c->ratio, p->ratio, err));
    if (p->scale[1] > 1)
        return ddp_fail(err, DDP_ERR_CONFIG, "scale = %g, %g is a share of the image's area and ends at 1", p->scale[0],
                        p->scale[1]);
    p->log_ratio[0] = log(p->ratio[0]);
    p->log_ratio[1] = log(p->ratio[1]);
    p->cropped = p->resized_crop = true;
    return DDP_OK;
}

static ddp_status read_crop(view_plan *p, const struct ddp_data_config *c, ddp_err *err)
{
    const ddp_list *list = c->random_crop.count > 0 ? &c->random_crop : &c->center_crop;

    p->random = c->random_crop.count > 0;
    p->cropped = list->count > 0;
    p->padding = c->padding;
    if (p->random && c->center_crop.count > 0)
        return ddp_fail(err, DDP_ERR_CONFIG, "random_crop and center_crop exclude each other; take one of them out");
    if (p->padding > 0 && !p->random)
        return ddp_fail(err, DDP_ERR_CONFIG, "padding = %" PRId64 " is for random_crop; set that too, or take it out",
                        p->padding);
    return p->cropped ? read_size(p->random ? "random_crop" : "center_crop", list, &p->crop, err) : DDP_OK;
}

ddp_status view_plan_read(view_plan *p, const struct ddp_data_config *c, uint64_t seed, ddp_err *err)
{
    *p = (view_plan){.resized = c->resize.count > 0, .shorter = c->resize.count == 1, .flip = c->flip, .seed = seed};
    p->flip_below = (uint64_t)(c->flip * 0x1p32);
    if (c->random_resized_crop.count > 0) return read_resized_crop(p, c, err);
    if (p->resized) DDP_TRY(read_size("resize", &c->resize, &p->size, err));
    return read_crop(p, c, err);
}

/* ---- sizes ------------------------------------------------------------------------------------------------------- */
/* The whole image after resize. With one number the shorter side gets it, and the other keeps the proportion, rounded
 * down, as torchvision's Resize has it. */
static view_size resized_size(const view_plan *p, view_size image)
{
    view_size s = p->size;

    if (!p->resized) return image;
    if (!p->shorter) return s;
    if (image.h <= image.w)
        s.w = s.h * image.w / image.h;
    else
        s.h = s.w * image.h / image.w;
    return s;
}

static ddp_status too_small(const view_plan *p, view_size have, ddp_status status, ddp_err *err)
{
    return ddp_fail(err, status,
                    "%s = %" PRId64 ", %" PRId64 " is larger than the image, %" PRId64 " x %" PRId64
                    "%s; choose a smaller one, or resize first",
                    p->random ? "random_crop" : "center_crop", p->crop.h, p->crop.w, have.h + 2 * p->padding,
                    have.w + 2 * p->padding, p->padding > 0 ? " with its padding" : "");
}

static bool crop_fits(const view_plan *p, view_size have)
{
    return p->crop.h <= have.h + 2 * p->padding && p->crop.w <= have.w + 2 * p->padding;
}

ddp_status view_out_size(const view_plan *p, view_size image, view_size *out, ddp_err *err)
{
    bool known = image.h > 0 || (p->resized && !p->shorter);
    view_size have = resized_size(p, image.h > 0 ? image : (view_size){1, 1});

    *out = p->cropped ? p->crop : have;
    if (!p->cropped && !known)
        return ddp_fail(err, DDP_ERR_CONFIG,
                        "the images of this dataset differ in size, and a batch needs one for all; "
                        "set resize = HEIGHT, WIDTH, or random_crop, center_crop or random_resized_crop");
    if (p->cropped && !p->resized_crop && known && !crop_fits(p, have)) return too_small(p, have, DDP_ERR_CONFIG, err);
    return DDP_OK;
}

/* ---- a sample ---------------------------------------------------------------------------------------------------- */
/* Half of what is cut off, to even where that is no whole number, as Python's round() in torchvision has it. */
static int64_t half(int64_t n) { return n / 2 + (n % 4 == 3); }

/* torchvision's RandomResizedCrop.get_params. */
static void draw_box(const view_plan *p, const ddp_random *random, view_size image, uint64_t index, view *v)
{
    double area = (double)image.h * (double)image.w, in_ratio = (double)image.w / (double)image.h;

    for (uint32_t k = 0; k < 10; k++) {
        uint32_t bits[4];
        double target, aspect;

        ddp_philox(random, VIEW_PLACE_BOX + k, index, bits);
        target = area * view_uniform(bits[0], p->scale[0], p->scale[1]);
        aspect = exp(view_uniform(bits[1], p->log_ratio[0], p->log_ratio[1]));
        v->box = (view_size){(int64_t)rint(sqrt(target / aspect)), (int64_t)rint(sqrt(target * aspect))};
        if (v->box.h < 1 || v->box.w < 1 || v->box.h > image.h || v->box.w > image.w) continue;
        v->from = (view_size){view_below(bits[2], image.h - v->box.h + 1), view_below(bits[3], image.w - v->box.w + 1)};
        return;
    }
    v->box = image;
    if (in_ratio < p->ratio[0]) v->box.h = (int64_t)rint((double)image.w / p->ratio[0]);
    if (in_ratio > p->ratio[1]) v->box.w = (int64_t)rint((double)image.h * p->ratio[1]);
    v->box = (view_size){DDP_MAX_OF(v->box.h, 1), DDP_MAX_OF(v->box.w, 1)};
    v->from = (view_size){(image.h - v->box.h) / 2, (image.w - v->box.w) / 2};
}

ddp_status view_draw(const view_plan *p, view_size image, uint64_t index, uint64_t epoch, view *v, ddp_err *err)
{
    ddp_random random = {.seed = p->seed, .stream = epoch};
    uint32_t bits[4];

    ddp_philox(&random, VIEW_PLACE_CROP, index, bits);
    *v = (view){.box = image, .mirrored = bits[2] < p->flip_below};
    if (p->resized_crop) {
        draw_box(p, &random, image, index, v);
        v->size = v->out = p->crop;
        return DDP_OK;
    }
    v->size = resized_size(p, image);
    v->out = p->cropped ? p->crop : v->size;
    if (!p->cropped) return DDP_OK;
    if (!crop_fits(p, v->size)) return too_small(p, v->size, DDP_ERR_DATA, err);
    v->corner = (view_size){half(v->size.h - v->out.h), half(v->size.w - v->out.w)};
    if (p->random)
        v->corner = (view_size){view_below(bits[0], v->size.h + 2 * p->padding - v->out.h + 1) - p->padding,
                                view_below(bits[1], v->size.w + 2 * p->padding - v->out.w + 1) - p->padding};
    return DDP_OK;
}

/* ---- for --check --------------------------------------------------------------------------------------------------*/
void view_describe(const view_plan *p, view_size image, bool antialias, ddp_text *out)
{
    view_size s = resized_size(p, image.h > 0 ? image : (view_size){1, 1});
    const char *smooth = antialias ? " (antialias)" : "";

    if (p->resized && p->shorter && image.h == 0)
        ddp_text_printf(out, " -> resize %" PRId64 "%s", p->size.h, smooth);
    else if (p->resized && (s.h != image.h || s.w != image.w))
        ddp_text_printf(out, " -> resize %" PRId64 "x%" PRId64 "%s", s.h, s.w, smooth);
    if (p->padding > 0) ddp_text_printf(out, " -> padding %" PRId64, p->padding);
    if (p->resized_crop)
        ddp_text_printf(out, " -> random resized crop %" PRId64 "x%" PRId64 " (scale %g to %g, ratio %g to %g)%s",
                        p->crop.h, p->crop.w, p->scale[0], p->scale[1], p->ratio[0], p->ratio[1], smooth);
    else if (p->cropped)
        ddp_text_printf(out, " -> %s crop %" PRId64 "x%" PRId64, p->random ? "random" : "center", p->crop.h, p->crop.w);
    if (p->flip > 0) ddp_text_printf(out, " -> flip %g", p->flip);
}
