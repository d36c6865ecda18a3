# row: rendezvous: two jobs on one file
# file: plugins/init/file/claim.c
# trials: 4
# The file of a run that lives is taken over like one of a dead run.
s/if (status == DDP_OK \&\& v == LIVE)/if (status == DDP_OK \&\& v == UNSURE)/
