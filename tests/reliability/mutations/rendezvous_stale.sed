# row: rendezvous: stale file
# file: plugins/init/file/record.c
# trials: 4
# A dead run on this machine is taken for a live one.
s/== other->start ? LIVE : DEAD/== other->start ? LIVE : LIVE/
