# sources of plugins/device/cpu
