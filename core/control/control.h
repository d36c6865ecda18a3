/* control/control.h -- the control thread ("ddp-control") of a rank. */
#ifndef DDP_CONTROL_CONTROL_H
#define DDP_CONTROL_CONTROL_H

void *control_main(void *group);

#endif
