# sources of core/train
