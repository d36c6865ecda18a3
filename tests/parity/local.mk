# parity
