/* plugins/dataset/csv/fit.h -- finds out what the columns of a file are: numbers, categories, nothing. */
#pragma once

#include "columns.h"

/* Reads the file once. Types and categories are of all its good rows, mean and standard deviation of those outside the
 * validation part. */
ddp_status columns_fit(columns *c, const csv_config *config, ddp_err *err);
