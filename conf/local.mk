exampledir = $(docdir)/conf
dist_example_DATA = conf/common.ini conf/node1.ini conf/node2.ini conf/nodes.ini conf/quickstart.ini conf/replicas.ini conf/stages.ini conf/pipeline.ini conf/slow-link.ini \
	conf/fashion-lenet.ini conf/fashion-best.ini conf/cifar-resnet18.ini conf/stl10-resnet18.ini conf/photos-resnet18.ini conf/text-gpt.ini conf/text-tokenizer.ini conf/text-lora.ini conf/chat-gpt2.ini \
	conf/gpt2-124m.ini conf/gpt2-gpu.ini conf/llama-smol.ini conf/photos.ini conf/table.ini \
	conf/ddpengine@.service
clusterdir = $(docdir)/conf/cluster
dist_cluster_DATA = conf/cluster/aggregate.ini conf/cluster/train.sbatch conf/cluster/jobset.yaml conf/cluster/mpijob.yaml
templatesdir = $(docdir)/conf/templates
dist_templates_DATA = conf/templates/alpaca.json conf/templates/chatml.json conf/templates/default.json \
	conf/templates/llama2.json conf/templates/llama3.json conf/templates/qwen.json conf/templates/qwen3_nothink.json \
	conf/templates/smollm2.json
netsdir = $(docdir)/conf/nets
dist_nets_DATA = conf/nets/mlp.net conf/nets/lenet.net conf/nets/resnet18.net conf/nets/gpt2-bytes.net conf/nets/darknet-alexnet.net conf/nets/darknet-cifar.net

# Debian packages: make deb
EXTRA_DIST += conf/packaging/Containerfile \
	conf/packaging/deb.sh \
	conf/packaging/debian/changelog \
	conf/packaging/debian/control \
	conf/packaging/debian/copyright \
	conf/packaging/debian/ddpengine-backend-gloo.install \
	conf/packaging/debian/ddpengine-backend-mpi.install \
	conf/packaging/debian/ddpengine-backend-nccl.install \
	conf/packaging/debian/ddpengine-device-cuda.install \
	conf/packaging/debian/ddpengine-doc.install \
	conf/packaging/debian/ddpengine.dirs \
	conf/packaging/debian/ddpengine.install \
	conf/packaging/debian/libddpengine-dev.install \
	conf/packaging/debian/libddpinfer0.install \
	conf/packaging/debian/lintian-overrides \
	conf/packaging/debian/not-installed \
	conf/packaging/debian/plugin-packages \
	conf/packaging/debian/rules \
	conf/packaging/debian/source/format \
	conf/packaging/bundle/elf.py \
	conf/packaging/bundle/libraries.py \
	conf/packaging/bundle/make_bundle.py \
	conf/packaging/bundle/make_wheel.py \
	conf/packaging/python/ddpengine/__init__.py \
	conf/packaging/python/ddpengine/_infer.py \
	conf/packaging/python/ddpengine/_program.py \
	conf/packaging/python/ddpengine/_run.py \
	conf/packaging/python/ddpengine/py.typed \
	conf/packaging/python/tests/test_module.py \
	tests/bundle.sh
.PHONY: deb check-deb
deb: dist
	$(AM_V_at)sh $(srcdir)/conf/packaging/deb.sh $(distdir).tar.gz
# in a clean Debian; DEB_ROOT=FILE.tar keeps that
check-deb:
	@test -f deb/ddpengine_$(PACKAGE_VERSION)-*.changes || $(MAKE) deb
	sh $(srcdir)/tests/packages.sh deb $(DEB_ROOT)
# One .tar.xz that runs from wherever it lies, and a Python wheel of it, in the folder bundle/. BUNDLE_SOURCES=FOLDER has Debian's unpacked
# source packages where apt-get source has none; BUNDLE_FLAGS: make_bundle.py --help
PACKAGING = PYTHONDONTWRITEBYTECODE=1 $(PYTHON) $(srcdir)/conf/packaging/bundle
.PHONY: bundle wheel check-bundle
bundle: all
	$(AM_V_at)$(PACKAGING)/make_bundle.py . $(PACKAGE_VERSION) $(if $(BUNDLE_SOURCES),--sources '$(BUNDLE_SOURCES)') $(BUNDLE_FLAGS)
wheel: bundle
	$(AM_V_at)$(PACKAGING)/make_wheel.py . $(PACKAGE_VERSION)
# as root, in bare Debians; BUNDLE_ROOTS=FOLDER keeps those
check-bundle: wheel
	sh $(srcdir)/tests/bundle.sh . $(BUNDLE_ROOTS)

clean-local: clean-packages
.PHONY: clean-packages
clean-packages:
	rm -rf deb bundle
