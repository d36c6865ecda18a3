/* config/sections.c -- the tables of the core's own sections, in the order of the manual: every key that is not a
 * plugin's, with its default. */
#include "config/sections.h"
#include "config/defaults.h"
#include <string.h>

#define R DDP_OPT_F_PER_RANK
#define L DDP_OPT_F_LIST

#define AT(field) offsetof(struct ddp_group_config, field)
static const ddp_option group_options[] = {
    {"backend", "auto", NULL,
     "Backend plugin for the collectives; `ddpengine plugins` lists them. "
     "auto: the highest priority among those that can reduce the device's memory and reach all ranks. "
     "LOCAL+REMOTE, such as shm+gloo-tcp: the first within each host, the second between hosts.",
     DDP_OPT_STRING, 0, AT(backend)},
    {"init_method", "", NULL,
     "URL of the rendezvous. tcp://HOST:PORT: rank 0 listens there. file:///PATH: a file in a shared folder. "
     "env://: the variables of a launcher. Empty: a free loopback port with --nproc; env:// under a launcher; "
     "port 29500 of the first host with nodes.",
     DDP_OPT_STRING, R, AT(init_method)},
    {"world_size", "0", "0..4096", "Number of ranks. 0: taken from the launcher, nodes or --nproc.", DDP_OPT_INT, 0,
     AT(world_size)},
    {"rank", "0", NULL,
     "Rank of this process; with --nproc, the first rank on this host. auto: from Open MPI, PMI, Slurm or nodes; "
     "if init_method is empty, also from torchrun. spare: none; it waits until a rank is lost, and takes its place.",
     DDP_OPT_STRING, R, AT(rank)},
    {"nodes", "", NULL,
     "Hosts of the run in the order of their ranks, HOST:RANKS each, as in host1:2, host2:2. "
     "With rank = auto each host finds its own entry by its name or addresses.",
     DDP_OPT_STRING, L, AT(nodes)},
    {"interface", "", NULL,
     "Network interface by which the other ranks reach this one, as in eth0. Empty: the one that routes to rank 0.",
     DDP_OPT_STRING, R, AT(interface)},
    {"rendezvous_timeout", "300s", "1s..30d",
     "Time limit for all ranks to join, and again for the backend to connect them.", DDP_OPT_DURATION, 0,
     AT(rendezvous_timeout_ms)},
    {"peer_timeout", "10s", "1s..30d",
     "How long a rank may be silent. Then it is named, and the run ends, or goes on as [run] restarts says.",
     DDP_OPT_DURATION, 0, AT(peer_timeout_ms)},
    {"step_timeout", "600s", "1s..30d",
     "How long a rank waits for one collective, and rank 0 for another rank's shard of a checkpoint.", DDP_OPT_DURATION,
     0, AT(step_timeout_ms)},
    {"ranks_per_hub", "32", "0..4096",
     "Where there are more than twice so many ranks, the first of each block of so many is the hub of the others: "
     "their messages to and from rank 0 pass through it. Rank 0's value counts. 0: all speak to rank 0 itself.",
     DDP_OPT_INT, R, AT(ranks_per_hub)},
    {"secret_file", "", NULL,
     "File with the secret that a process needs to join, the same on all hosts; --gen-secret FILE writes one.",
     DDP_OPT_PATH, R, AT(secret_file)},
    {"auth", "psk", "psk|none",
     "psk: ranks on other hosts need the secret of secret_file; over loopback, ranks of one user need none. "
     "none: whoever reaches rank 0 may join.",
     DDP_OPT_ENUM, 0, AT(auth)},
};
#undef AT

#define AT(field) offsetof(struct ddp_run_config, field)
static const ddp_option run_options[] = {
    {"restarts", "0", "0..1000",
     "How many losses of ranks within restart_window the run survives. 0: none, the first one ends it. "
     "The supervisor (--nproc or --supervise) starts the lost ranks again; the others wait for them.",
     DDP_OPT_INT, 0, AT(restarts)},
    {"restart_window", "1h", "1s..365d", "A loss that is longer ago no longer counts.", DDP_OPT_DURATION, 0,
     AT(restart_window_ms)},
    {"restart_delay", "1s", "0s..1h",
     "Time until a lost rank is started again. It doubles with each further loss within restart_window, up to 64 times.",
     DDP_OPT_DURATION, 0, AT(restart_delay_ms)},
    {"rejoin_timeout", "120s", "1s..30d",
     "How long the other ranks wait for a lost one before the run ends, or goes on without it as min_world allows.",
     DDP_OPT_DURATION, 0, AT(rejoin_timeout_ms)},
    {"min_world", "0", "0..4096",
     "With so many ranks the run goes on without those that are missing, and takes them in again when they come. "
     "The others train on their samples too, so the global batch and the order of the samples stay. 0: none may be missing.",
     DDP_OPT_INT, 0, AT(min_world)},
};
#undef AT

#define AT(field) offsetof(struct ddp_train_config, field)
static const ddp_option train_options[] = {
    {"parallel", "ddp", "ddp|dp|model|pipeline",
     "ddp: each rank has one device. dp: one process (world_size 1) trains a replica on each of several devices. "
     "model: one process trains one model whose layers are on several devices, as [model.NAME] place says. "
     "pipeline: the same with ranks in place of devices, on one host or several; see stages.",
     DDP_OPT_ENUM, 0, AT(parallel)},
    {"device", DDP_DEFAULT_DEVICE, NULL,
     "Device plugin and, after a colon, the number of the device, as in NAME:1; dp and model take a list. "
     "If the device uses host memory, each number is a set of compute threads. "
     "If it has its own memory, no number means one device for each rank of a host. "
     "auto: the device with the highest priority that this machine has.",
     DDP_OPT_STRING, R | L, AT(device)},
    {"threads", "0", "0..4096",
     "Compute threads of a device. 0: the processors divided by the ranks on this host and by the devices of a rank.",
     DDP_OPT_INT, R, AT(threads)},
    {"pin", "auto", "auto|yes|no",
     "Whether each compute thread is bound to a processor of its own. "
     "auto: yes if the ranks of a host have one thread for each processor and no launcher has bound them.",
     DDP_OPT_ENUM, R, AT(pin)},
    {"epochs", "1", "1..1000000000", "Passes over the data.", DDP_OPT_INT, 0, AT(epochs)},
    {"max_steps", "0", "0..", "Steps after which the run ends, even within an epoch. 0: no limit.", DDP_OPT_INT, 0,
     AT(max_steps)},
    {"batch_size", "0", "0..1073741824",
     "Samples of a rank (dp: of a replica) in a micro-batch. 0: global_batch / (accumulate x world_size), or 64.",
     DDP_OPT_INT, 0, AT(batch_size)},
    {"global_batch", "0", "0..1099511627776",
     "Samples of all ranks in one step. 0: batch_size x accumulate x world_size (dp: x replicas).", DDP_OPT_INT, 0,
     AT(global_batch)},
    {"accumulate", "0", "0..1048576",
     "Micro-batches in a step; the ranks communicate after the last one. "
     "0: global_batch / (batch_size x world_size), or 1.",
     DDP_OPT_INT, 0, AT(accumulate)},
    {"even_batches", "auto", "auto|yes|no",
     "Whether all ranks have equally many samples in each step. "
     "yes: as with PyTorch's DistributedSampler, which repeats or drops samples at the end of an epoch for that. "
     "no: each sample comes once an epoch, parts of a step may differ by a sample, and its loss is the mean over all. "
     "auto: yes where global_batch is batch_size x accumulate x world_size, until the number of ranks changes.",
     DDP_OPT_ENUM, 0, AT(even_batches)},
    {"seed", "0", NULL, "Seed of the initial parameters and of the order of samples.", DDP_OPT_UINT, 0, AT(seed)},
    {"eval_every", "1", "0..", "Epochs between evaluations. 0: only at the end.", DDP_OPT_INT, 0, AT(eval_every)},
    {"check_replicas_every", "0", "0..",
     "Steps between comparisons of all ranks' parameters, which must be equal bit for bit; also before each save. "
     "0: never.",
     DDP_OPT_INT, 0, AT(check_replicas_every)},
    {"replicas_differ", "abort", "abort|rollback",
     "What to do when the parameters of ranks differ. abort: the run ends with exit code 9. "
     "rollback: all ranks go back to the newest checkpoint and make the steps after it again.",
     DDP_OPT_ENUM, 0, AT(replicas_differ)},
    {"non_finite", "abort", "abort|skip|rollback",
     "What to do when the loss or a gradient is not finite on any rank. abort: the run ends with exit code 7. "
     "skip: all ranks leave that update out, warn and go on. "
     "rollback: all ranks go back to the newest checkpoint and make the steps after it again.",
     DDP_OPT_ENUM, 0, AT(non_finite)},
    {"non_finite_limit", "10", "1..1000000000",
     "Updates in a row that non_finite = skip leaves out; the next one ends the run with exit code 7.", DDP_OPT_INT, 0,
     AT(non_finite_limit)},
    {"rollback_limit", "3", "1..1000000000",
     "Times in a row that rollback goes back to the same step; the next failure ends the run. "
     "A step that fails a second time ends it at once.",
     DDP_OPT_INT, 0, AT(rollback_limit)},
    {"loss_mean", "auto", "auto|batch|token",
     "What the loss of a step is a mean over. batch: the micro-batches' means, as in PyTorch's DistributedDataParallel. "
     "token: all labels that count, as with transformers' num_items_in_batch. "
     "auto: token where the data has labels that are ignored, else batch. An evaluation likewise.",
     DDP_OPT_ENUM, 0, AT(loss_mean)},
    {"loss_spike", "0", "0..",
     "Warns of a loss above this many times the usual one, the median of the steps before. 0: no warning.",
     DDP_OPT_FLOAT, 0, AT(loss_spike)},
    {"early_stopping", "", NULL,
     "METRIC, PATIENCE, as in loss, 5: the run ends when so many evaluations in a row have not improved the metric. "
     "min: or max: in front of it says what is better. Empty: it does not.",
     DDP_OPT_STRING, L, AT(early_stopping)},
    {"min_delta", "0", "0..", "What early_stopping counts as an improvement: a larger difference than this.",
     DDP_OPT_FLOAT, 0, AT(min_delta)},
    {"noise_scale", "no", NULL,
     "Measures the gradient noise scale, about the global batch beyond which training gains little. "
     "Needs several ranks, replicas or micro-batches.",
     DDP_OPT_BOOL, 0, AT(noise_scale)},
    {"freeze", "", NULL,
     "Names of parameters that are loaded and saved but not trained, as in conv1.*; * matches any text.",
     DDP_OPT_STRING, L, AT(freeze)},
    {"deterministic", "no", NULL,
     "yes: refuses settings that let a measurement at the start change the result, as bucket_size = auto. "
     "A GPU then takes only algorithms that give the same bits in every run.",
     DDP_OPT_BOOL, 0, AT(deterministic)},
    {"precision", "f32", "f32|bf16",
     "Precision of matrix products and convolutions. bf16: operands are rounded to bf16; sums and all else stay f32.",
     DDP_OPT_ENUM, 0, AT(precision)},
    {"recompute", "no", "no|yes|blocks|auto",
     "Less memory for activations, more time. yes: recomputes outputs of activations and norms in the backward pass. "
     "blocks: recomputes all blocks of a transformer. auto: as many blocks as it takes for activation_memory.",
     DDP_OPT_ENUM, 0, AT(recompute)},
    {"activation_memory", "0", NULL,
     "Of recompute = auto: what a rank's activations may take, as in 2GiB; what --check prints as activations.",
     DDP_OPT_SIZE, 0, AT(activation_memory)},
    {"stages", "0", "0..64",
     "pipeline: so many ranks have one model together, each a stage of it. "
     "The ranks are world_size / stages replicas: stage 0 of all comes first, then stage 1 of all.",
     DDP_OPT_INT, 0, AT(stages)},
    {"place", "auto", NULL,
     "pipeline, where the model has no place of its own: the first layer of each stage, as LAYER:STAGE. "
     "h.4:1, h.8:2 makes three stages of a model with layers h.0 to h.11. "
     "auto: stages that take about as long, as measured at the start, and of those the ones that take the least memory. "
     "With deterministic = yes arithmetic takes the place of the measurement.",
     DDP_OPT_STRING, L, AT(place)},
    {"split_head", "no", NULL,
     "ddp, for models of very many classes. yes: the classes of the output layer and its cross-entropy are divided among the ranks. "
     "Each rank has, updates and saves its classes alone, and the ranks exchange features in place of that layer's gradients.",
     DDP_OPT_BOOL, 0, AT(split_head)},
};
#undef AT

#define AT(field) offsetof(struct ddp_plugin_config, field)
static const ddp_option model_options[] = {
    {"plugin", NULL, NULL, "Model plugin that builds the graph; `ddpengine plugins` lists them.", DDP_OPT_STRING, 0,
     AT(plugin)},
};
static const ddp_option hook_options[] = {
    {"plugin", "", NULL,
     "Hook plugin that compresses gradients before they are sent to other ranks, as in bf16. Empty: no compression.",
     DDP_OPT_STRING, 0, AT(plugin)},
};
static const ddp_option sampler_options[] = {
    {"plugin", DDP_DEFAULT_SAMPLER, NULL, "Sampler plugin that orders the samples.", DDP_OPT_STRING, 0, AT(plugin)},
};
#undef AT

/* Of both [data] and [eval]. */
#define RESIZE_DOC                                                                                                     \
    "Scales images to this size (bilinear): height, width, or one number for the shorter side. Empty: unchanged."
#define ANTIALIAS_DOC "Whether resize smooths images that it shrinks, as torchvision's antialias=True."
#define PADDING_DOC   "Black pixels that random_crop adds on each side of an image first."
#define RANDOM_CROP_DOC                                                                                                \
    "Crops to this size at a random position, a new one in each epoch: height, width, or one number for both."
#define CENTER_CROP_DOC "Crops the middle to this size: height, width, or one number for both."
#define RESIZED_CROP_DOC                                                                                               \
    "Crops a random box of the image and scales it to this size, as RandomResizedCrop: height, width, or one number."
#define SCALE_DOC "Smallest and largest share of the image's area that the box of random_resized_crop has."
#define RATIO_DOC "Smallest and largest width / height of the box of random_resized_crop."
#define COLOR_JITTER_DOC                                                                                               \
    "Largest change of brightness, contrast, saturation and hue, drawn for each sample. Empty: none."
#define ERASING_DOC "Probability that a box of the normalised image becomes 0, as RandomErasing. 0: off."
#define DCT_SCALE_DOC                                                                                                  \
    "Whether a JPEG that is going to be shrunk may be decoded at n/8 of its size. Faster; the pixels differ a little."
#define CACHE_DOC                                                                                                      \
    "Most bytes of decoded images that each rank keeps in memory, where the dataset's images differ in size. 0: none."
#define FLIP_DOC "Probability that an image is mirrored left to right, drawn again in each epoch."
#define MEAN_DOC "Subtracted from pixels scaled to 0..1: a number for each channel or one for all. Empty: 0."
#define STD_DOC  "Pixels are then divided by it: a number for each channel or one for all. Empty: 1."

#define AT(field) offsetof(struct ddp_data_config, field)
static const ddp_option data_options[] = {
    {"plugin", NULL, NULL, "Dataset plugin that gives the training samples; `ddpengine plugins` lists them.",
     DDP_OPT_STRING, 0, AT(plugin)},
    {"resize", "", "1..16384", RESIZE_DOC, DDP_OPT_INT, L, AT(resize)},
    {"antialias", "yes", NULL, ANTIALIAS_DOC, DDP_OPT_BOOL, 0, AT(antialias)},
    {"padding", "0", "0..16384", PADDING_DOC, DDP_OPT_INT, 0, AT(padding)},
    {"random_crop", "", "1..16384", RANDOM_CROP_DOC, DDP_OPT_INT, L, AT(random_crop)},
    {"center_crop", "", "1..16384", CENTER_CROP_DOC, DDP_OPT_INT, L, AT(center_crop)},
    {"random_resized_crop", "", "1..16384", RESIZED_CROP_DOC, DDP_OPT_INT, L, AT(random_resized_crop)},
    {"scale", "0.08, 1", "0..1", SCALE_DOC, DDP_OPT_FLOAT, L, AT(scale)},
    {"ratio", "0.75, 1.3333333", "0..", RATIO_DOC, DDP_OPT_FLOAT, L, AT(ratio)},
    {"dct_scale", "no", NULL, DCT_SCALE_DOC, DDP_OPT_BOOL, 0, AT(dct_scale)},
    {"cache", "0", "0..1000TiB", CACHE_DOC, DDP_OPT_SIZE, DDP_OPT_F_PER_RANK, AT(cache)},
    {"flip", "0", "0..1", FLIP_DOC, DDP_OPT_FLOAT, 0, AT(flip)},
    {"color_jitter", "", "0..100", COLOR_JITTER_DOC, DDP_OPT_FLOAT, L, AT(color_jitter)},
    {"random_erasing", "0", "0..1", ERASING_DOC, DDP_OPT_FLOAT, 0, AT(random_erasing)},
    {"mixup", "0", "0..1000",
     "alpha of MixUp: samples and labels are mixed with their neighbours', by a share from Beta(alpha, alpha). 0: off.",
     DDP_OPT_FLOAT, 0, AT(mixup)},
    {"cutmix", "0", "0..1000",
     "alpha of CutMix: a box of each image is its neighbour's, and that share of the label. "
     "With mixup too, each batch gets one of the two. 0: off.",
     DDP_OPT_FLOAT, 0, AT(cutmix)},
    {"mean", "", NULL, MEAN_DOC, DDP_OPT_FLOAT, L, AT(mean)},
    {"std", "", NULL, STD_DOC, DDP_OPT_FLOAT, L, AT(std)},
};
static const ddp_option eval_options[] = {
    {"plugin", "", NULL, "Dataset plugin that gives the evaluation samples. Empty: no evaluation.", DDP_OPT_STRING, 0,
     AT(plugin)},
    {"weights", "ema", "ema|model",
     "Which parameters are evaluated. ema: the average of [optimizer] ema, where there is one. model: those trained.",
     DDP_OPT_ENUM, 0, AT(weights)},
    {"resize", "", "1..16384", RESIZE_DOC, DDP_OPT_INT, L, AT(resize)},
    {"antialias", "yes", NULL, ANTIALIAS_DOC, DDP_OPT_BOOL, 0, AT(antialias)},
    {"padding", "0", "0..16384", PADDING_DOC, DDP_OPT_INT, 0, AT(padding)},
    {"random_crop", "", "1..16384", RANDOM_CROP_DOC, DDP_OPT_INT, L, AT(random_crop)},
    {"center_crop", "", "1..16384", CENTER_CROP_DOC, DDP_OPT_INT, L, AT(center_crop)},
    {"random_resized_crop", "", "1..16384", RESIZED_CROP_DOC, DDP_OPT_INT, L, AT(random_resized_crop)},
    {"scale", "0.08, 1", "0..1", SCALE_DOC, DDP_OPT_FLOAT, L, AT(scale)},
    {"ratio", "0.75, 1.3333333", "0..", RATIO_DOC, DDP_OPT_FLOAT, L, AT(ratio)},
    {"dct_scale", "no", NULL, DCT_SCALE_DOC, DDP_OPT_BOOL, 0, AT(dct_scale)},
    {"cache", "0", "0..1000TiB", CACHE_DOC, DDP_OPT_SIZE, DDP_OPT_F_PER_RANK, AT(cache)},
    {"flip", "0", "0..1", FLIP_DOC, DDP_OPT_FLOAT, 0, AT(flip)},
    {"color_jitter", "", "0..100", COLOR_JITTER_DOC, DDP_OPT_FLOAT, L, AT(color_jitter)},
    {"random_erasing", "0", "0..1", ERASING_DOC, DDP_OPT_FLOAT, 0, AT(random_erasing)},
    {"mean", "", NULL, "As in [data]. Empty: the value of [data].", DDP_OPT_FLOAT, L, AT(mean)},
    {"std", "", NULL, "As in [data]. Empty: the value of [data].", DDP_OPT_FLOAT, L, AT(std)},
    {"metrics", "", NULL,
     "Metrics beside those of the model: accuracy, top5, f1, confusion of a classifier, mae, r2 of a regression.",
     DDP_OPT_STRING, L, AT(metrics)},
};
#undef AT

#define AT(field) offsetof(struct ddp_ddp_config, field)
static const ddp_option ddp_options[] = {
    {"bucket_size", "25MiB", "1..1TiB",
     "Bytes of gradients that are reduced together. auto: chosen by measuring the link between the ranks at the start.",
     DDP_OPT_SIZE, DDP_OPT_F_AUTO, AT(bucket_size)},
    {"first_bucket_size", "1MiB", "1..1TiB", "Bytes of the first bucket, smaller so that communication starts early.",
     DDP_OPT_SIZE, 0, AT(first_bucket_size)},
    {"overlap", "auto", "auto|yes|no",
     "Whether buckets are reduced during the backward pass. "
     "auto: yes, unless that takes a processor from the compute threads.",
     DDP_OPT_ENUM, 0, AT(overlap)},
    {"wire_order", "fifo", "auto|fifo|forward",
     "fifo: buckets go out as their gradients are complete. "
     "forward: those that the next forward pass needs first go first, and it begins while others are under way. "
     "auto: forward between hosts, unless a setting needs all parameters at the end of a step. "
     "The results have the same bits.",
     DDP_OPT_ENUM, 0, AT(wire_order)},
    {"shard_update", "auto", "auto|no",
     "auto: if ranks share memory, overlap is not yes and check_replicas_every is 0, each updates a shard for all. "
     "no: every rank updates all parameters. The results have the same bits.",
     DDP_OPT_ENUM, 0, AT(shard_update)},
    {"zero", "0", "0..1",
     "1: each rank keeps the optimiser's state of one shard of the parameters and updates that shard (ZeRO stage 1). "
     "A checkpoint is the same either way.",
     DDP_OPT_INT, 0, AT(zero)},
    {"broadcast_buffers", "yes", NULL,
     "yes: all ranks evaluate with rank 0's running statistics, which are also those of a checkpoint. "
     "no: each rank evaluates with its own.",
     DDP_OPT_BOOL, 0, AT(broadcast_buffers)},
    {"local_steps", "0", "0..1000000",
     "H above 0: each rank makes H steps by itself, then all go on from the average of their parameters (DiLoCo). "
     "0: the gradients of every step are reduced.",
     DDP_OPT_INT, 0, AT(local_steps)},
    {"outer_lr", "auto", "0.000001..10",
     "Of local steps: how far the parameters move towards the average of the ranks. "
     "auto: 0.7 with outer_momentum, else 1, which is that average.",
     DDP_OPT_FLOAT, DDP_OPT_F_AUTO, AT(outer_lr)},
    {"outer_momentum", "0.9", "0..1", "Of local steps: Nesterov momentum of these moves. 0: none.", DDP_OPT_FLOAT, 0,
     AT(outer_momentum)},
};
#undef AT

#define AT(field) offsetof(struct ddp_loader_config, field)
static const ddp_option loader_options[] = {
    {"workers", "1", "0..256", "Threads that read samples. 0: the training thread reads them.", DDP_OPT_INT, R,
     AT(workers)},
    {"prefetch", "4", "2..1024", "Batches that are read ahead of the step.", DDP_OPT_INT, R, AT(prefetch)},
};
#undef AT

#define AT(field) offsetof(struct ddp_checkpoint_config, field)
static const ddp_option checkpoint_options[] = {
    {"dir", "", NULL, "Folder for checkpoints. Empty: none are written.", DDP_OPT_PATH, 0, AT(dir)},
    {"every", "0", "0..", "Steps between checkpoints. 0: only one, at the end.", DDP_OPT_INT, 0, AT(every)},
    {"keep", "3", "0..", "How many of the newest checkpoints are kept. 0: all.", DDP_OPT_INT, 0, AT(keep)},
    {"keep_every", "0", "0..",
     "Beside the newest, a checkpoint whose step is a multiple of this is kept for good. 0: none.", DDP_OPT_INT, 0,
     AT(keep_every)},
    {"keep_best", "", NULL,
     "Metric of the evaluations whose best checkpoint is saved and kept for good, as in accuracy; dir/best leads to it. "
     "min: or max: in front of the metric says what is better. Empty: none.",
     DDP_OPT_STRING, 0, AT(keep_best)},
    {"async", "yes", NULL,
     "yes: training stops while the state is copied into memory, and rank 0 writes that copy beside it. "
     "no: training stops until the checkpoint is on the disk.",
     DDP_OPT_BOOL, 0, AT(async)},
    {"sharded", "no", NULL,
     "yes: with [ddp] zero = 1 each rank writes its part of the optimiser's state; all ranks must share dir. "
     "Rank 0 waits for each part, for [group] step_timeout at most. "
     "no: rank 0 collects the state and writes one file.",
     DDP_OPT_BOOL, 0, AT(sharded)},
    {"on_error", "abort", "abort|warn",
     "What a save that fails does, on a full disk for example. abort: the run ends with exit code 8. "
     "warn: training goes on, and the next save is tried when it is due; the last one of a run must succeed.",
     DDP_OPT_ENUM, 0, AT(on_error)},
    {"resume", "auto", NULL,
     "auto: resume from the newest valid checkpoint. never: start from scratch. PATH: resume from that one. "
     "Rank 0's value counts.",
     DDP_OPT_STRING, DDP_OPT_F_PER_RANK, AT(resume)},
    {"init_from", "", NULL,
     "The initial parameters and buffers of a run that starts from scratch. "
     "A safetensors file, or a folder with one or several: a checkpoint's or Hugging Face's. "
     "Names are PyTorch's. Rank 0 reads it.",
     DDP_OPT_PATH, 0, AT(init_from)},
};
#undef AT

#define AT(field) offsetof(struct ddp_output_config, field)
static const ddp_option output_options[] = {
    {"dir", "", NULL, "Folder for metrics.jsonl, ranks.jsonl and summary.json. Empty: none is written.", DDP_OPT_PATH,
     0, AT(dir)},
    {"trace_steps", "", NULL,
     "Steps, as in 10-12, that each rank traces (segments and buckets) into trace-rankN.json in dir.", DDP_OPT_STRING,
     0, AT(trace_steps)},
    {"audit", "no", NULL,
     "Whether each rank records the samples of every update in dir. "
     "`ddpengine audit` proves from it that each epoch used each sample exactly once.",
     DDP_OPT_BOOL, 0, AT(audit)},
    {"tensorboard", "no", NULL,
     "Whether dir gets an event file of TensorBoard: the numbers of metrics.jsonl, the settings and warnings as text.",
     DDP_OPT_BOOL, R, AT(tensorboard)},
    {"histograms", "0", "0..",
     "Steps between two histograms of every trained parameter and its gradient, for TensorBoard. 0: none.", DDP_OPT_INT,
     0, AT(histograms)},
    {"prometheus", "", NULL,
     "The state of the run for Prometheus' node_exporter: a file that ends in .prom, replaced once a second. "
     "Empty: none.",
     DDP_OPT_PATH, R, AT(prometheus)},
    {"ranks", "yes", NULL,
     "Whether dir gets ranks.jsonl: where the time of each rank's steps goes. A run of one rank has none.",
     DDP_OPT_BOOL, 0, AT(ranks)},
    {"log_every", "100", "1..", "Steps between plain progress lines.", DDP_OPT_INT, R, AT(log_every)},
    {"progress", "auto", "auto|plain|off",
     "auto: a live line on a terminal, plain lines elsewhere. plain: a line every log_every steps. off: none.",
     DDP_OPT_ENUM, R, AT(progress)},
    {"log_level", "info", "debug|info|warning|error",
     "The least important lines that are printed. debug: also what devices and backends have chosen, and why.",
     DDP_OPT_ENUM, R, AT(log_level)},
    {"advice", "line", "line|no|full",
     "What several ranks bring. line: one line about it after the first second. no: none. "
     "full: measures compute, hooks and the link before the first step, and writes advice.json in dir, as "
     "`ddpengine advise` does.",
     DDP_OPT_ENUM, 0, AT(advice)},
};
#undef AT

#define AT(field) offsetof(struct ddp_plugins_config, field)
static const ddp_option plugins_options[] = {
    {"path", "", NULL, "Folders searched for plugins, before DDPENGINE_PLUGIN_PATH and the installed ones.",
     DDP_OPT_PATH, L, AT(path)},
};
#undef AT

#define optimizer_options config_optimizer_options
#define lora_options      config_lora_options
#define SECTION(name, type)                                                                                            \
    {                                                                                                                  \
#name, name##_options, DDP_COUNT(name##_options), sizeof(type)                                                 \
    }
static const ddp_core_section sections[] = {
    SECTION(group, struct ddp_group_config),
    SECTION(run, struct ddp_run_config),
    SECTION(train, struct ddp_train_config),
    SECTION(model, struct ddp_plugin_config),
    SECTION(data, struct ddp_data_config),
    SECTION(eval, struct ddp_data_config),
    SECTION(sampler, struct ddp_plugin_config),
    SECTION(optimizer, struct ddp_optimizer_config),
    SECTION(lora, struct ddp_lora_config),
    SECTION(ddp, struct ddp_ddp_config),
    SECTION(hook, struct ddp_plugin_config),
    SECTION(loader, struct ddp_loader_config),
    SECTION(checkpoint, struct ddp_checkpoint_config),
    SECTION(output, struct ddp_output_config),
    SECTION(plugins, struct ddp_plugins_config),
};
static const char *const section_names[] = {"group", "run",     "train",      "model",  "data",
                                            "eval",  "sampler", "optimizer",  "lora",   "ddp",
                                            "hook",  "loader",  "checkpoint", "output", "plugins"};
_Static_assert(DDP_COUNT(sections) == DDP_COUNT(section_names), "a section without its name");

const ddp_core_section *config_core_section_find(const char *name)
{
    for (size_t i = 0; i < DDP_COUNT(sections); i++)
        if (strcmp(sections[i].name, name) == 0) return &sections[i];
    return NULL;
}

const char *config_core_section_with(const char *key)
{
    const char *found = NULL;

    for (size_t i = 0; i < DDP_COUNT(sections); i++)
        for (size_t j = 0; j < sections[i].count; j++)
            if (strcmp(sections[i].options[j].key, key) == 0) {
                if (found != NULL) return NULL;
                found = sections[i].name;
            }
    return found;
}

size_t ddp_config_sections(const char *const **names)
{
    *names = section_names;
    return DDP_COUNT(section_names);
}

const ddp_option *ddp_config_options(const char *section, size_t *count)
{
    const ddp_core_section *s = config_core_section_find(section);

    *count = s != NULL ? s->count : 0;
    return s != NULL ? s->options : NULL;
}
