# sources of core/checkpoint
