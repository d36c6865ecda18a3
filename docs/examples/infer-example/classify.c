/* Classifies one sample, whose numbers come from standard input as raw float32: ./classify mnist.ini ckpt <sample */
#include <ddpinfer.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    ddp_infer_error error = {""};
    ddp_infer_tensor in, out;
    ddp_infer *model;
    size_t best = 0;

    if (argc != 3) return fprintf(stderr, "usage: classify INI CHECKPOINT\n"), 2;
    if (ddp_infer_open(argv[1], argv[2], NULL, &model, &error) != DDP_INFER_OK)
        return fprintf(stderr, "%s\n", error.text), 1;
    ddp_infer_input(model, 0, &in);   /* "image", 1 x 28 x 28 */
    ddp_infer_output(model, 0, &out); /* "logits", 10 */

    float *x = malloc(in.bytes), *y = malloc(out.bytes);
    if (x == NULL || y == NULL || fread(x, in.bytes, 1, stdin) != 1)
        return fprintf(stderr, "%s: too few numbers\n", in.name), 1;
    if (ddp_infer_run(model, 1, (const void *[]){x}, (void *[]){y}, &error) != DDP_INFER_OK)
        return fprintf(stderr, "%s\n", error.text), 1;
    for (size_t i = 1; i < out.bytes / sizeof(*y); i++)
        if (y[i] > y[best]) best = i;
    printf("class %zu\n", best);
    free(x);
    free(y);
    ddp_infer_close(model);
    return 0;
}
