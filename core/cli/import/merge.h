/* cli/import/merge.h -- what a merge needs beside its model: the sizes of the adapters, and data for the model's
 * form. */
#pragma once

#include "cli/import/values.h"

void convert_merge(converter *c);
