# What PyTorch gives, stored; tests/parity/make_vectors.py writes it anew.
EXTRA_DIST += tests/parity/make_vectors.py tests/parity/vectors/sampler.txt tests/parity/vectors/random.txt \
	tests/parity/vectors/initial.txt tests/parity/vectors/normalize.txt
