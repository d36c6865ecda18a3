/* control/control.h -- the control thread ("ddp-control") of a rank. */
#pragma once

void *control_main(void *group);
