/* tests/fuzz/targets.h -- every target: TARGET(NAME) of targets/NAME.c. A new one is a line here, a line in local.mk
 * and a folder in corpus/. */
TARGET(adapter)
TARGET(aggregate)
TARGET(audit)
TARGET(cifar)
TARGET(control)
#ifdef DDP_WITH_CSV
TARGET(csv)
#endif
TARGET(elf)
TARGET(environment)
TARGET(gguf)
TARGET(hook_state)
TARGET(identity)
#ifdef DDP_WITH_ZLIB
TARGET(idx)
#endif
#ifdef DDP_WITH_IMAGES
TARGET(image)
TARGET(image_list)
#endif
#ifdef DDP_WITH_YAML
TARGET(import)
#endif
TARGET(ini)
TARGET(jsonl)
TARGET(manifest)
TARGET(model_config)
TARGET(model_index)
TARGET(net)
TARGET(nodes)
#ifdef DDP_WITH_LIBZIP
TARGET(npy)
#endif
TARGET(option)
#ifdef DDP_WITH_SENTENCEPIECE
TARGET(pieces)
#endif
TARGET(record)
TARGET(report)
#ifdef DDP_WITH_TOKENIZER
TARGET(regex)
#endif
TARGET(safetensors)
TARGET(secret)
#ifdef DDP_WITH_TOKENIZER
TARGET(sft)
#endif
TARGET(shards)
TARGET(stl10)
#ifdef DDP_WITH_ARCHIVE
TARGET(tar)
#endif
#ifdef DDP_WITH_TOKENIZER
TARGET(tokenizer)
#endif
TARGET(tokens)
TARGET(url)
TARGET(wire)
