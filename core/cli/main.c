#include <stdio.h>
int main(void)
{
    puts("ddpengine " DDP_VERSION);
    return 0;
}
