exampledir = $(docdir)/conf
dist_example_DATA = conf/common.ini conf/node1.ini conf/node2.ini conf/nodes.ini conf/quickstart.ini conf/replicas.ini conf/stages.ini conf/slow-link.ini \
	conf/fashion-lenet.ini conf/fashion-best.ini conf/cifar-resnet18.ini conf/stl10-resnet18.ini conf/photos-resnet18.ini conf/text-gpt.ini conf/text-tokenizer.ini conf/text-lora.ini conf/chat-gpt2.ini \
	conf/gpt2-124m.ini conf/gpt2-gpu.ini conf/llama-smol.ini conf/photos.ini conf/table.ini \
	conf/ddpengine@.service
templatesdir = $(docdir)/conf/templates
dist_templates_DATA = conf/templates/alpaca.json conf/templates/chatml.json conf/templates/default.json \
	conf/templates/llama2.json conf/templates/llama3.json conf/templates/qwen.json conf/templates/qwen3_nothink.json \
	conf/templates/smollm2.json
netsdir = $(docdir)/conf/nets
dist_nets_DATA = conf/nets/mlp.net conf/nets/lenet.net conf/nets/resnet18.net conf/nets/gpt2-bytes.net conf/nets/darknet-alexnet.net conf/nets/darknet-cifar.net
