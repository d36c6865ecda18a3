# tests/count.awk: sums the closing lines of `make check` as "N passed, N failed, N skipped".
/^# PASS:/ || /^# XFAIL:/ {p += $3}
/^# FAIL:/ || /^# XPASS:/ || /^# ERROR:/ {f += $3}
/^# SKIP:/ {s += $3}
END {printf "%d passed, %d failed, %d skipped\n", p, f, s}
