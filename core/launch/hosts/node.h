/* launch/hosts/node.h -- the other end of `ddpengine launch`, on each host: `ddpengine launch --node`, started by ssh.
 *
 * It prints one line, HELLO VERSION PORT, where PORT is one that is free here, and reads lines from standard input:
 *
 *     dir PATH, variable NAME=VALUE, secret HEX, arg WORD ..., end      what to run, with which arguments and variables
 *     signal N                                                      passed on to the ranks
 *     kill                                                          ends them at once
 *
 * The end of standard input means that the launcher or the connection is gone: the ranks are asked to end, and killed
 * when they have not after a while. The exit code is that of the ranks. */
#pragma once

#include "base/log.h"

#define LAUNCH_HELLO "ddpengine-launch-1"
enum { LAUNCH_SECRET_HEX = 64 };

int launch_node_run(ddp_log *log); /* the exit code */
