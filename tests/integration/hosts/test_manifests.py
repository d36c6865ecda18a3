"""conf/cluster's manifests for Kubernetes: their fields are those of the schemas, and what their pods run trains here."""
import copy
import json
import os
import pathlib
import re
import shutil
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import harness  # noqa: E402
from harness import SRC, Case, Skip  # noqa: E402

try:
    import yaml
except ImportError:
    yaml = None


def problems(value, schema, root, at=""):
    """What is wrong with it, by the part of JSON Schema that CRDs and schemas.json use. Fields that a schema does not name are wrong."""
    if "$ref" in schema:
        return problems(value, root["definitions"][schema["$ref"].rsplit("/", 1)[1]], root, at)
    if schema.get("x-kubernetes-int-or-string"):
        return [] if isinstance(value, (int, str)) else [f"{at}: {value!r} is no number and no text"]
    kinds = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool}
    wanted = schema.get("type", [])
    wanted = tuple(kinds[k] for k in ([wanted] if isinstance(wanted, str) else wanted))
    out = []
    if wanted and (not isinstance(value, wanted) or (isinstance(value, bool) and bool not in wanted)):
        return [f"{at}: {value!r} is no {schema['type']}"]
    if "const" in schema and value != schema["const"]:
        out.append(f"{at}: {value!r} is not {schema['const']!r}")
    if "enum" in schema and value not in schema["enum"]:
        out.append(f"{at}: {value!r} is none of {schema['enum']}")
    if isinstance(value, int) and not schema.get("minimum", value) <= value <= schema.get("maximum", value):
        out.append(f"{at}: {value} is out of range")
    if isinstance(value, str) and "pattern" in schema and not re.search(schema["pattern"], value):
        out.append(f"{at}: {value!r} does not match {schema['pattern']}")
    if isinstance(value, list):
        if len(value) < schema.get("minItems", 0):
            out.append(f"{at}: too few")
        for i, item in enumerate(value):
            out += problems(item, schema.get("items", {}), root, f"{at}[{i}]")
    if isinstance(value, dict):
        fields, more = schema.get("properties", {}), schema.get("additionalProperties", "properties" not in schema)
        out += [f"{at}.{k}: missing" for k in schema.get("required", []) if k not in value]
        for k, v in value.items():
            if k in fields:
                out += problems(v, fields[k], root, f"{at}.{k}")
            elif isinstance(more, dict):
                out += problems(v, more, root, f"{at}.{k}")
            elif not more:
                out.append(f"{at}.{k}: there is no such field")
    return out


class Manifests(Case):
    def manifest(self, name):
        if yaml is None:
            raise Skip("no PyYAML (python3-yaml)")
        return yaml.safe_load((SRC / f"conf/cluster/{name}.yaml").read_text())

    def schema(self, name):
        root = json.loads((SRC / "tests/fixtures/kubernetes/schemas.json").read_text())
        if "DDP_CRDS" not in os.environ:
            return root[name], root
        crd = yaml.safe_load((pathlib.Path(os.environ["DDP_CRDS"]) / f"{name}.yaml").read_text())
        version = root[name]["properties"]["apiVersion"]["const"].split("/")[1]
        schema = next(v["schema"]["openAPIV3Schema"] for v in crd["spec"]["versions"] if v["name"] == version)
        return schema, schema

    def test_fields(self):
        for name in ("jobset", "mpijob"):
            good, (schema, root) = self.manifest(name), self.schema(name)
            self.equal(problems(good, schema, root), [])
            wrong = copy.deepcopy(good)
            wrong["spec"]["replicatedJob"] = []
            self.equal(problems(wrong, schema, root), [".spec.replicatedJob: there is no such field"])
            wrong = copy.deepcopy(good)
            first = wrong["spec"]["replicatedJobs"][0] if name == "jobset" else wrong["spec"]["mpiReplicaSpecs"]["Worker"]
            first["replicas"] = "1"
            self.check(len(problems(wrong, schema, root)) == 1, problems(wrong, schema, root))
            del first["template"]
            self.check(name == "mpijob" and "DDP_CRDS" in os.environ or "template: missing" in str(problems(wrong, schema, root)),
                       problems(wrong, schema, root))

    def local(self, words, **variables):
        """Words of a manifest for this host: paths in the case's folder, $(NAME) expanded as Kubernetes does."""
        out = []
        for w in words:
            w = w.replace("/config/", f"{self.dir}/").replace("/training/", f"{self.dir}/")
            out.append(re.sub(r"\$\((\w+)\)", lambda m: str(variables[m[1]]), w))
        return out

    def test_jobset_trains(self):
        job = self.manifest("jobset")["spec"]["replicatedJobs"][0]["template"]["spec"]
        pod = job["template"]["spec"]
        args = pod["containers"][0]["args"]
        self.equal(job["parallelism"], job["completions"])
        self.check(f"group.world_size={job['parallelism']}" in args, args)
        self.equal({m["name"] for m in pod["containers"][0]["volumeMounts"]}, {v["name"] for v in pod["volumes"]})
        whole = self.train(nproc=4)
        self.ini("train.ini", {"output": {"dir": self.dir / "out"}})
        here = ("--set", "init.file.listen=127.0.0.1")  # the pods have addresses of their own
        ranks = [self.start(*self.local(args, JOB_COMPLETION_INDEX=i), *here) for i in range(job["parallelism"])]
        for p in ranks:
            r = self.finish(p)
            self.equal(r.code, 0, r)
        self.check(whole.summary["parameter_sha256"] in (self.dir / "out" / "summary.json").read_text())
        self.check(not (self.dir / "rendezvous-train").exists(), "the file of the rendezvous is left")
        wrong = self.finish(self.start(*self.local(args, JOB_COMPLETION_INDEX=4), *here))
        self.check(wrong.code in job["podFailurePolicy"]["rules"][0]["onExitCodes"]["values"], wrong)

    def test_systemd_with_several_ranks(self):
        """The lines of docs/hosts/clusters.md beside the unit: systemd understands them, and the program its command."""
        lines = re.search(r"```ini\n(\[Service\]\n.*?)```", (SRC / "docs/hosts/clusters.md").read_text(), re.S)[1]
        command = re.search(r"^ExecStart=/usr/bin/ddpengine -c /etc/ddpengine/%i.ini (.*)$", lines, re.M)
        r = self.run("-c", self.ini("x.ini"), *command[1].split(), "--check")
        self.equal(r.code, 0, r)
        if shutil.which("systemd-analyze") is None:
            raise Skip("no systemd-analyze (systemd)")
        for name, text in (("ddpengine@.service", (SRC / "conf/ddpengine@.service").read_text()), ("ddpengine@.service.d/ranks.conf", lines)):
            path = self.dir / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text.replace("/usr/bin/ddpengine", str(harness.ENGINE)))
        r = self.finish(self.spawn(["systemd-analyze", "verify", "--man=no", self.dir / "ddpengine@.service"]))
        self.equal((r.code, r.err), (0, ""), r)

    def test_mpijob_trains(self):
        if shutil.which("mpirun") is None or not (harness.BUILD / "backend_mpi.la").exists():
            raise Skip("no mpirun, or no backend mpi in this build")
        job = self.manifest("mpijob")["spec"]
        container = job["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]
        words = self.local([*container["command"], *container["args"]])
        self.equal(int(words[words.index("-np") + 1]), job["slotsPerWorker"] * job["mpiReplicaSpecs"]["Worker"]["replicas"])
        self.ini("train.ini", {"group": {"backend": "mpi"}, "output": {"dir": self.dir / "out"}})
        words[words.index("ddpengine")] = str(harness.ENGINE)
        r = self.finish(self.spawn([words[0], "--oversubscribe", *words[1:], "--set", "init.file.listen=127.0.0.1"],
                                   {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", **harness.MPI_LEAKS}))
        self.equal(r.code, 0, r)
        self.check("with 4 ranks" in r.err and "over mpi" in r.err, r)


if __name__ == "__main__":
    sys.exit(harness.main(Manifests))
