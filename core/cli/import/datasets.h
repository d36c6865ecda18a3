/* cli/import/datasets.h -- [data] and [eval] of a YAML: the entries of its datasets in dataset_info.json, and the
 * options of both sections. */
#pragma once

#include "cli/import/values.h"

ddp_status convert_data(converter *c, ddp_err *err);
