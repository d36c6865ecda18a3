# sources of samplers
