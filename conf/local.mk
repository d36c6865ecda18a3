# sources of conf
