/* fuzz/targets/record.c -- the file of init method file://. */
#include "file/file.h"
#include "fuzz.h"

FUZZ_TARGET(record)
{
    char text[RECORD_MAX], who[256];
    static record self;
    record r, again;
    watch w = {.absent = size % 2 == 1};
    size_t length, beat_at;
    ddp_err err = {0};
    ddp_status status = record_read(fuzz_file(0, data, size, 0), &r, &err);

    fuzz_check_error(status, &err);
    if (status != DDP_OK) return 0;
    if (self.pid == 0) FUZZ_CHECK(record_of_this_run(&self, 1000, &err) == DDP_OK);
    FUZZ_CHECK(strlen(r.endpoint) < DDP_ENDPOINT_MAX && strlen(r.host) > 0);
    FUZZ_CHECK(record_who(&r, who, sizeof(who)) == who);
    (void)record_check(&self, &r, &w);
    r.beat++;
    (void)record_check(&self, &r, &w);
    r.interval_ms = -1; /* as if five heartbeats were missing */
    (void)record_check(&self, &r, &w);
    r.interval_ms = 1000;
    length = record_print(&r, text, &beat_at);
    FUZZ_CHECK(length < sizeof(text) && beat_at < length);
    FUZZ_CHECK(record_read(fuzz_file(1, text, length, 0), &again, &err) == DDP_OK);
    FUZZ_CHECK(strcmp(r.endpoint, again.endpoint) == 0 && strcmp(r.secret, again.secret) == 0 && r.pid == again.pid &&
               r.beat == again.beat);
    return 0;
}
