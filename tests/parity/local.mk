EXTRA_DIST += tests/parity/make/make_onnx.py tests/parity/vectors/onnx.json
# What PyTorch gives, stored; tests/parity/make/make_vectors.py writes it again.
EXTRA_DIST += tests/parity/make/make_vectors.py tests/parity/vectors/sampler.txt tests/parity/vectors/random.txt \
	tests/parity/vectors/initial.txt tests/parity/vectors/normalize.txt
EXTRA_DIST += tests/parity/make/make_schedules.py tests/parity/vectors/schedules.txt tests/parity/make/make_histograms.py tests/parity/vectors/histograms.txt \
	tests/parity/make/make_groups.py tests/parity/vectors/groups.json tests/parity/make/make_loss_mean.py tests/parity/vectors/loss_mean.json
EXTRA_DIST += tests/parity/openblas.py tests/parity/torch_mlp.py tests/parity/torch_ranks.py tests/parity/make/make_curves.py tests/parity/test_curve.py tests/parity/vectors/curves.json
if WITH_GLOO
if WITH_ZLIB
TESTS += tests/parity/test_curve.py
LONG_TESTS += tests/parity/test_curve.py
endif
endif

# loss curves of a convolutional net, a ResNet and a GPT
EXTRA_DIST += tests/parity/torch_eval.py tests/parity/torch_float64.py tests/parity/torch_train.py tests/parity/make/make_model_curves.py tests/parity/test_model_curves.py \
	tests/parity/vectors/model_curves.json
if WITH_ZLIB
TESTS += tests/parity/test_model_curves.py
LONG_TESTS += tests/parity/test_model_curves.py
endif

# LoRA and frozen parameters, against PEFT
EXTRA_DIST += tests/parity/make/make_lora.py tests/parity/test_lora.py tests/parity/vectors/lora
TESTS += tests/parity/test_lora.py

# not a test: trainings of minutes to hours, started by hand
EXTRA_DIST += tests/parity/accuracy.py

# every op against PyTorch's stored results
EXTRA_DIST += tests/parity/make/make_ops.py tests/parity/vectors/ops.safetensors tests/parity/make/make_losses.py tests/parity/make/make_metrics.py \
	tests/parity/vectors/losses.safetensors tests/parity/vectors/metrics.json tests/parity/make/make_llama.py \
	tests/parity/vectors/llama_ops.safetensors tests/parity/vectors/llama.json
if WITH_CMOCKA
check_PROGRAMS += tests/parity/test_ops
TESTS += tests/parity/test_ops
tests_parity_test_ops_SOURCES = tests/parity/test_ops.c
tests_parity_test_ops_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_parity_test_ops_LDADD = $(UNIT_LDADD)
endif

# every model against torchvision's, Hugging Face's and PyTorch's
MODEL_VECTORS = lenet two_conv resnet resnet_imagenet gpt2 llama qwen2 qwen3
EXTRA_DIST += tests/parity/torch_models.py tests/parity/make/make_models.py tests/parity/vectors/models.json \
	$(MODEL_VECTORS:%=tests/parity/vectors/models/%.safetensors) $(MODEL_VECTORS:%=tests/parity/vectors/models/%.expected.safetensors)
if WITH_CMOCKA
check_PROGRAMS += tests/parity/test_models
TESTS += tests/parity/test_models
tests_parity_test_models_SOURCES = tests/parity/test_models.c tests/parity/model_util.h
tests_parity_test_models_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_parity_test_models_LDADD = $(UNIT_LDADD)
endif

# the transforms of images against PyTorch's stored results
EXTRA_DIST += tests/parity/make/make_transforms.py tests/parity/vectors/transforms.safetensors
if WITH_CMOCKA
check_PROGRAMS += tests/parity/test_transforms
TESTS += tests/parity/test_transforms
tests_parity_test_transforms_SOURCES = tests/parity/test_transforms.c
tests_parity_test_transforms_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_parity_test_transforms_LDADD = $(UNIT_LDADD)
endif

# color_jitter against torchvision's results; files of images, whose pixels tests/unit/dataset/test_images.c compares with Pillow's
EXTRA_DIST += tests/parity/make/make_attention.py tests/parity/make/make_unicode16.py tests/parity/vectors/attention.safetensors tests/parity/make/make_augment.py tests/parity/vectors/augment.safetensors tests/parity/make/make_images.py \
	tests/parity/vectors/images
if WITH_CMOCKA
check_PROGRAMS += tests/parity/test_augment
TESTS += tests/parity/test_augment
tests_parity_test_augment_SOURCES = tests/parity/test_augment.c
tests_parity_test_augment_CPPFLAGS = $(UNIT_CPPFLAGS)
tests_parity_test_augment_LDADD = $(UNIT_LDADD)
endif

# tokenizers of each kind of pipeline, and what Hugging Face's library makes of texts
EXTRA_DIST += tests/parity/make/make_tokenizers.py tests/parity/vectors/tokenizers tests/parity/make/make_sft.py \
	tests/parity/vectors/sft
