# sources of plugins/dataset/idx
