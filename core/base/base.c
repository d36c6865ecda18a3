#include "base/base.h"
const char *ddp_status_text(ddp_status status)
{
    (void)status;
    return "";
}
