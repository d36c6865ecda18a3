"""What llama.cpp (PyPI: xllamacpp) makes of a GGUF file, greedy: gguf_live.py FILE PROMPT COUNT [ADAPTER]. The prompt is numbers of
tokens, as is what it prints, one line of JSON."""
import json
import sys

import xllamacpp


def main():
    p = xllamacpp.CommonParams()
    p.model.path, p.n_ctx, p.warmup, p.cpuparams.n_threads = sys.argv[1], 256, False, 1
    p.cache_type_k = p.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    p.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    if len(sys.argv) > 4:
        p.lora_adapters = [xllamacpp.CommonAdapterLoraInfo(sys.argv[4], 1.0)]
    r = xllamacpp.Server(p).handle_completions({
        "prompt": [int(t) for t in sys.argv[2].split(",")], "n_predict": int(sys.argv[3]), "temperature": 0, "logprobs": 1, "ignore_eos": True})
    r = json.loads(r) if isinstance(r, (str, bytes)) else r
    print("\n" + json.dumps([c["id"] for c in r["choices"][0]["logprobs"]["content"]]))


if __name__ == "__main__":
    main()
