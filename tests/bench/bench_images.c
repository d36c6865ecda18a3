/* bench_images.c -- images a second that one thread makes of a folder of photographs: file to f32 batch.
 *
 * make tests/bench/bench_images && tests/bench/bench_images FOLDER center|random|resized|shorter [dct] [SECONDS]
 *
 * center, random: a crop of 224; shorter: the shorter side to 256, then a center crop of 224; resized:
 * random_resized_crop of 224. With mean, std and for random ones flip. Prints images a second of the thread's
 * processor time, once a line; tests/bench/image_loading.py compares it with torchvision. */
#include "data/loader.h"
#include "support/dataset_util.h"
#include <time.h>

enum { BATCH = 64 };

static uint64_t count_of(const ddp_sampler *s) { return *(const uint64_t *)(const void *)s; }

static ddp_status indices_of(ddp_sampler *s, uint64_t epoch, uint64_t *out, ddp_err *err)
{
    uint64_t n = count_of(s);

    (void)err;
    for (uint64_t i = 0; i < n; i++) out[i] = (i * 7919 + epoch * 13) % n;
    return DDP_OK;
}

static double now(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void ok(ddp_status status, const ddp_err *err)
{
    if (status == DDP_OK) return;
    (void)fprintf(stderr, "%s\n", err->msg);
    exit(1);
}

static ddp_transform *open_transform(const char *how, bool dct, const ddp_field *fields)
{
    static const int64_t crop[] = {224}, shorter[] = {256};
    static const double mean[] = {0.485, 0.456, 0.406}, std[] = {0.229, 0.224, 0.225}, scale[] = {0.08, 1};
    static const double ratio[] = {0.75, 4.0 / 3.0};
    struct ddp_data_config c = {.antialias = 1, .dct_scale = dct, .scale = {2, scale}, .ratio = {2, ratio}};
    ddp_list size = {1, crop}, means = {3, mean}, stds = {3, std};
    ddp_transform_params p = {&c, &means, &stds, 5, fields, 2, 0};
    ddp_transform *t = NULL;
    ddp_err err = {0};

    if (strcmp(how, "random") == 0) c.random_crop = size;
    if (strcmp(how, "resized") == 0) c.random_resized_crop = size;
    if (strcmp(how, "shorter") == 0) c.resize = (ddp_list){1, shorter};
    if (strcmp(how, "shorter") == 0 || strcmp(how, "center") == 0) c.center_crop = size;
    c.flip = how[0] == 'r' ? 0.5 : 0;
    ok(ddp_transform_open(&p, &t, &err), &err);
    return t;
}

int main(int argc, char **argv)
{
    bool dct = argc > 3 && strcmp(argv[3], "dct") == 0;
    double seconds = argc > 3 + dct ? atof(argv[3 + dct]) : 3, begin_at;
    ddp_loader_params p = {.batch_size = BATCH};
    ddp_sampler_ops sampler = {.struct_size = sizeof(sampler), .count = count_of, .indices = indices_of};
    subject s = begin("dataset_folder");
    const ddp_field *fields;
    ddp_loader *loader = NULL;
    ddp_dataset *d = NULL;
    uint64_t count, made = 0;
    ddp_err err = {0};

    if (argc < 3) return 2;
    config_set(s.plugin, s.config, "path", argv[1]);
    ok(s.ops->open(NULL, s.config, &d, &err), &err);
    (void)s.ops->fields(d, &fields);
    count = s.ops->length(d);
    p.dataset_ops = s.ops;
    p.dataset = d;
    p.transform = open_transform(argv[2], dct, fields);
    p.sampler_ops = &sampler;
    p.sampler = (ddp_sampler *)(void *)&count;
    ok(ddp_loader_open(&p, &loader, &err), &err);
    ok(ddp_loader_begin(loader, 0, 0, &err), &err);
    ok(ddp_loader_next(loader, &(ddp_batch){0}, &err), &err); /* takes its memory */
    begin_at = now();
    for (uint64_t epoch = 0; now() - begin_at < seconds; epoch++) {
        ddp_batch batch;

        ok(ddp_loader_begin(loader, epoch, 0, &err), &err);
        while (ddp_loader_next(loader, &batch, &err) == DDP_OK && now() - begin_at < seconds)
            made += (uint64_t)batch.count;
        ok(err.status == DDP_IN_PROGRESS ? DDP_OK : err.status, &err);
    }
    (void)printf("%.1f\n", (double)made / (now() - begin_at));
    ddp_loader_close(loader);
    s.ops->close(d);
    return 0;
}
