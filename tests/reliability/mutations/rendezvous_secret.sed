# row: differing secret
# file: core/control/rank0/accept.c
# trials: 1
# No process without the secret is taken for a rank of this run.
s/^    bool expected = is_expected(g, id);/    bool expected = is_expected(g, id) \&\& g == NULL;/
