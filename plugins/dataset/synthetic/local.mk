# sources of plugins/dataset/synthetic
