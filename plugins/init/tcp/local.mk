# sources of plugins/init/tcp
