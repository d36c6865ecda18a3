"""ddpengine import-yaml: an INI from a YAML of LLaMA-Factory, and what of it is named as not taken over."""
import configparser
import json
import pathlib
import shlex
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import harness  # noqa: E402
from harness import Case, Skip  # noqa: E402

INFO = {"mine": {"file_name": "mine.json"}, "other": {"file_name": "other.jsonl"},
        "chat": {"file_name": "chat.json", "formatting": "sharegpt", "columns": {"messages": "turns", "system": "sys"},
                 "tags": {"role_tag": "role", "content_tag": "content", "user_tag": "user", "assistant_tag": "assistant"}},
        "asked": {"file_name": "asked.json", "columns": {"prompt": "q", "response": "a", "history": "before"}},
        "raw": {"file_name": "raw.json", "columns": {"prompt": "body"}},
        "commas": {"file_name": "c.json", "columns": {"prompt": "a,b"}}, "lines": {"file_name": "c.json", "columns": {"prompt": "a\n[o]"}},
        "tagged": {"file_name": "c.json", "formatting": "sharegpt", "tags": {"user_tag": "me, you"}}, "apart": {"file_name": "a,b.json"},
        "far": {"hf_hub_url": "some/where"}, "pairs": {"file_name": "p.json", "ranking": True}, "table": {"file_name": "t.csv"}}
SFT = """### model
model_name_or_path: models/base
trust_remote_code: true
### method
stage: sft
do_train: true
finetuning_type: lora
lora_rank: 16
lora_target: q_proj,v_proj
use_dora: true
### dataset
dataset: mine, other
dataset_dir: {dir}
template: llama3
cutoff_len: 512
max_samples: 1000
neat_packing: true
preprocessing_num_workers: 16
### output
output_dir: saves/x
logging_steps: 10
save_steps: 500
report_to: none
### train
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
learning_rate: 1.0e-4
num_train_epochs: 3.0
lr_scheduler_type: cosine
warmup_ratio: 0.1
bf16: true
frobnicate: 1
### eval
val_size: 0.1
eval_strategy: steps
eval_steps: 500
"""
LINES = SFT.splitlines()


def line_of(key):
    return next(n for n, line in enumerate(LINES, 1) if line.startswith(key + ":"))


class Import(Case):
    def made(self, text, code=0):
        """The sections of the INI, and the run of the command."""
        (self.dir / "dataset_info.json").write_text(json.dumps(INFO))
        path = self.dir / "a.yaml"
        path.write_text(text.replace("{dir}", str(self.dir)))
        r = self.run("import-yaml", path)
        if "without libyaml" in r.err:
            raise Skip("built without libyaml")
        self.equal(r.code, code, r)
        ini = configparser.ConfigParser(interpolation=None)
        ini.read_string(r.out)
        return {s: dict(ini[s]) for s in ini.sections()}, r

    def without(self, *keys, **more):
        return "\n".join([x for x in LINES if x.split(":")[0] not in keys] + [f"{k}: {v}" for k, v in more.items()]) + "\n"

    def test_fine_tuning(self):
        ini, r = self.made(SFT)
        data = {"files": f"{self.dir}/mine.json, {self.dir}/other.jsonl", "format": "alpaca", "columns": "history:, system:, tools:",
                "limit": "1000", "template": "llama3", "tokenizer": "models/base", "length": "512", "packing": "separate",
                "skip_bad": "yes", "validation": "0.1"}
        self.equal(ini, {
            "model": {"plugin": "llama"}, "model.llama": {"config": "models/base"},
            "lora": {"rank": "16", "target": "q_proj,v_proj"},
            "data": {"plugin": "sft"}, "data.sft": {**data, "split": "train"},
            "eval": {"plugin": "sft"}, "eval.sft": {**data, "split": "validation"},
            "train": {"batch_size": "1", "accumulate": "8", "epochs": "3", "seed": "42", "precision": "bf16", "eval_every": "1"},
            "optimizer": {"lr": "1.0e-4", "algorithm": "adamw", "weight_decay": "0", "clip_norm": "1.0", "schedule": "cosine"},
            "checkpoint": {"init_from": "models/base", "dir": "saves/x/checkpoints", "every": "500", "keep": "0"},
            "output": {"log_every": "10", "dir": "saves/x"}})
        for key, why in (("use_dora", "only plain LoRA is supported"), ("frobnicate", "this key is not known here"),
                         ("warmup_ratio", "set [optimizer] warmup_steps"), ("eval_steps", "evaluations are at the ends of epochs")):
            self.check(f"a.yaml: not taken over: line {line_of(key)}: {key}: {why}" in r.err, r.err)
            self.check(f"#   line {line_of(key)}: {key}: {why}" in r.out, r.out)
        self.equal(r.err.count("not taken over"), 4, r)
        self.check("preprocessing_num_workers: the samples are made once" in r.out, r.out)
        out = self.dir / "out.ini"
        self.equal(self.run("import-yaml", "-o", out, self.dir / "a.yaml").code, 0)
        self.equal(out.read_text(), r.out)
        self.fails(self.run("import-yaml", "-o", out, self.dir / "a.yaml"), 2, "out.ini", "File exists")

    def test_other_values(self):
        ini, _ = self.made(self.without("dataset", "lora_rank", "lora_target", "val_size", "save_steps", "finetuning_type",
                                        dataset="chat", max_steps=200, lora_target="\n  - q_proj\n  - k_proj", report_to="tensorboard",
                                        adam_beta2=0.95, mask_history="true", eval_dataset="asked").replace("report_to: none\n", ""))
        self.equal((ini["data.sft"]["format"], ini["data.sft"]["columns"], ini["data.sft"]["tags"]),
                   ("messages", "system:sys, messages:turns, tools:", "observation_tag:, function_tag:, system_tag:"))
        self.equal(ini["eval.sft"]["columns"], "prompt:q, query:, response:a, history:before, system:, tools:")
        self.equal(ini["lora"], {"rank": "8", "target": "q_proj, k_proj"})
        self.equal((ini["train"]["max_steps"], ini["train"]["epochs"], ini["optimizer"]["warmup_steps"]), ("200", "1000000", "20"))
        self.equal((ini["optimizer"]["betas"], ini["checkpoint"]["every"]), ("0.9, 0.95", "500"))
        self.equal((ini["output"]["tensorboard"], ini["data.sft"]["mask_history"]), ("yes", "yes"))

    def test_pretraining_and_full(self):
        ini, _ = self.made(self.without("stage", "dataset", "neat_packing", "finetuning_type", "val_size", "use_dora",
                                        stage="pt", dataset="raw", finetuning_type="full"))
        self.check("lora" not in ini and "eval" not in ini and "template" not in ini["data.sft"], ini)
        self.equal((ini["data.sft"]["format"], ini["data.sft"]["columns"], ini["data.sft"]["packing"]), ("text", "prompt:body", "yes"))

    def test_merge(self):
        ini, r = self.made("model_name_or_path: models/base\nadapter_name_or_path: saves/x\ntemplate: llama3\n"
                           "export_dir: out\nexport_size: 2\nexport_device: cpu\n")
        self.equal((ini["lora"], ini["checkpoint"]["init_from"]), ({"init_from": "saves/x", "rank": "8"}, "models/base"))
        self.check("line 2: adapter_name_or_path: there is no adapter_config.json in it yet" in r.err, r)
        self.check("ddpengine merge -c THIS_FILE --shard-size 2GB out" in r.out, r.out)

        (self.dir / "adapter_config.json").write_text(json.dumps({"r": 4, "lora_alpha": 32, "target_modules": ["q_proj", "k_proj"],
                                                                  "use_rslora": True}))
        ini, r = self.made("model_name_or_path: models/base\nadapter_name_or_path: {dir}\nexport_dir: out\n")
        self.equal(ini["lora"], {"init_from": str(self.dir), "rank": "4", "alpha": "32", "target": "q_proj, k_proj", "rslora": "yes"})
        self.equal((ini["data"]["plugin"], r.err), ("synthetic", ""))

    def wrong(self, text, *parts):
        _, r = self.made(text, 2)
        self.fails(r, 2, *parts)

    def test_values_of_each_type(self):
        for value, why in (("maybe", "neither true nor false"), ("y", "neither true nor false"), ("2", "neither true nor false"),
                           ("[true]", "a list where one value has to be"), ("[]", "a list where one value has to be")):
            for key in ("bf16", "packing", "neat_packing", "train_on_prompt", "mask_history", "use_rslora"):
                self.refused(key, value, why)
        for key, why, *values in (("val_size", "no number from 0 on", "tenth", "-0.1", "0x1"),
                                  ("num_train_epochs", "no number from 0 on", "-1", "many"),
                                  ("warmup_ratio", "no number from 0 to 1", "-1", "1.5", "x"),
                                  ("adam_beta1", "no number from 0 to below 1", "x", "1", "-0.5", '"\\n0.9"'),
                                  ("adam_beta2", "no number from 0 to below 1", "x"), ("max_grad_norm", "no number", "x", '" 1"'),
                                  ("max_steps", "no whole number", "1.5", "x", "1e16"), ("eval_steps", "no number from 0 on", "x"),
                                  ("seed", "no whole number from 0 on", "x", "-1", "0.5"),
                                  ("save_steps", "no whole number from 0 on", "x", "-1"),
                                  ("cutoff_len", "no whole number from 1 on", "long", "0", "1.5"),
                                  ("max_samples", "no whole number from 1 on", "lots", "0", "-3", '"5\\n[o]\\na = 1"'),
                                  ("preprocessing_batch_size", "no whole number from 1 on", "few"),
                                  ("lora_rank", "no whole number from 1 on", "0", "x"),
                                  ("export_size", "no whole number from 1 on", "two", "0"),
                                  ("save_strategy", "none of no, steps, epoch, best", "weird"),
                                  ("eval_strategy", "none of no, steps, epoch", "weird", "best")):
            for value in values:
                self.refused(key, value, why)
        for key in ("cutoff_len", "stage", "template", "output_dir", "save_strategy", "seed", "model_name_or_path"):
            self.refused(key, "[1, 2]", "a list where one value has to be")
            self.refused(key, "{a: 1}", "a mapping where a value has to be")

    def refused(self, key, value, why):
        """Exit code 2 and one line for `key: value` as the first line of the YAML."""
        _, r = self.made(f"{key}: {value}\n" + self.without(key), 2)
        self.fails(r, 2, f"a.yaml:1: {key}", f": {why}")
        self.equal(len(r.err.splitlines()), 1, r)

    def test_values_that_are_right(self):
        ini, _ = self.made(self.without("max_samples", "cutoff_len", "neat_packing", "bf16", "save_steps", "report_to", "val_size",
                                        max_samples="10.0", cutoff_len="1e3", neat_packing="NO", packing="ON", bf16="Off", seed=7,
                                        max_grad_norm=-1, save_strategy="no", report_to="[tensorboard]", adam_beta1=0, val_size=0,
                                        mask_history=""))
        self.equal([ini["data.sft"].get(x) for x in ("limit", "length", "packing", "mask_history")], ["10", "1000", "yes", None])
        self.equal((ini["train"].get("precision"), ini["train"]["seed"], ini["optimizer"]["clip_norm"]), (None, "7", "0"))
        self.equal((ini["optimizer"]["betas"], ini["output"]["tensorboard"]), ("0, 0.999", "yes"))
        self.check("every" not in ini["checkpoint"] and "eval" not in ini, ini)
        _, r = self.made(self.without(save_strategy="best"))
        self.check("save_strategy: see [checkpoint] keep_best" in r.err, r.err)

    def test_steps_that_are_no_end(self):
        for value in (0, -1, "0.0"):
            ini, r = self.made(self.without(max_steps=value))
            self.equal(ini["train"]["epochs"], "3", value)
            self.check("max_steps" not in ini["train"] and "warmup_steps" not in ini["optimizer"], ini)

    def test_text_that_no_ini_holds(self):
        for name, what in (("commas", "the name of a column or tag"), ("lines", "the name of a column or tag"),
                           ("tagged", "the name of a column or tag"), ("apart", "the path of its file")):
            self.wrong(self.without("dataset", dataset=name), f'a.yaml:{len(LINES)}: dataset "{name}": {what} has a comma or')
        self.wrong(self.without("lora_target", lora_target='["a,b", c]'), f"a.yaml:{len(LINES)}: lora_target: an item is empty or has a comma")
        self.wrong(self.without("dataset", dataset="n" * 300), "a name has at most 255 bytes")
        for key, section, to in (("default_system", "data.sft", "default_system"), ("template", "data.sft", "template"),
                                 ("resume_from_checkpoint", "checkpoint", "resume"), ("output_dir", "output", "dir")):
            for value in ('"a\\n[o]\\na = 1"', '"a ;b"', '" a"', '";a"'):
                ini, r = self.made(f"{key}: {value}\n" + self.without(key))
                self.check("o" not in ini and to not in ini[section], ini)
                self.equal(r.err.count(f"not taken over: line 1: {key}: its text cannot stand in an INI"), 1, r)
        ini, _ = self.made(self.without(default_system='"a # b"'))
        self.equal(ini["data.sft"]["default_system"], "a # b")
        (self.dir / "adapter_config.json").write_text(json.dumps({"r": 4, "target_modules": ["a,b"]}))
        ini, r = self.made("model_name_or_path: models/base\nadapter_name_or_path: {dir}\nexport_dir: out\n")
        self.check("target" not in ini["lora"] and "line 2: adapter_name_or_path: a name of target_modules" in r.err, r)

    def test_command_of_a_merge(self):
        for name, word in (("a b", "'a b'"), ("it's", "'it'\\''s'"), ("$(x)", "'$(x)'"), ("-x", "./-x"), ("~/x", "'~/x'"), ("a/b_1.c", "a/b_1.c")):
            _, r = self.made(f"model_name_or_path: m\nexport_dir: {json.dumps(name)}\n")
            line = next(x for x in r.out.splitlines() if "ddpengine merge" in x)
            self.check(line.endswith(f"--shard-size 5GB {word}"), line)
            self.equal(shlex.split(line)[-1], name if name[0] != "-" else "./" + name, line)

    def test_errors(self):
        for key, value, why in (("stage", "dpo", "only the stages sft and pt are supported"),
                                ("finetuning_type", "oft", "only lora and full are supported"),
                                ("learning_rate", "fast", "no number"), ("logging_steps", "1.5", "no whole number"),
                                ("logging_steps", "[1, 2]", "a list where one value has to be"),
                                ("save_steps", "{a: 1}", "a mapping where a value has to be"),
                                ("dataset", "none", 'dataset "none": dataset_info.json has no entry'),
                                ("dataset", "far", "it is on a hub"), ("dataset", "pairs", "preferences are not supported"),
                                ("dataset", "table", "only .json and .jsonl files are read"),
                                ("dataset", "mine,chat", 'dataset "chat": its columns or format are not those')):
            self.wrong(SFT.replace(LINES[line_of(key) - 1], f"{key}: {value}"), f"a.yaml:{line_of(key)}: ", why)
        self.wrong(SFT.replace("{dir}", "nowhere"), f"a.yaml:{line_of('dataset')}: nowhere/dataset_info.json: No such file or directory; dataset_dir is")
        (self.dir / "bad").mkdir()
        for text, why in (("[]", "dataset_info.json:1: no object"), ('{\n"a"', "dataset_info.json:2: ")):
            (self.dir / "bad" / "dataset_info.json").write_text(text)
            self.wrong(SFT.replace("{dir}", "{dir}/bad"), why, "dataset_dir is")
        self.wrong("a: 1\n", "a.yaml:1: there is no model_name_or_path")
        self.wrong("a: 1\nb: 2\na: 3\n", 'a.yaml:3: "a" stands in line 1 already')
        self.wrong("a: [1\nb: 2\n", "a.yaml:2: ")
        self.wrong("- a\n", "a.yaml:1: no keys with values")
        self.wrong("", "a.yaml:1: the file is empty")
        self.fails(self.run("import-yaml", self.dir / "none.yaml"), 2, "none.yaml", "No such file")
        self.fails(self.run("import-yaml"), 2, "no YAML file")


if __name__ == "__main__":
    sys.exit(harness.main(Import))
