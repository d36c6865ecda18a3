# sources of models
