# sources of plugins/backend/gloo_tcp
