libddpcore_a_SOURCES += core/net/address.h core/net/endpoint.h core/net/identity.h core/net/interface.h core/net/nodes.h core/net/tls.h core/net/user.h core/net/wire.h \
	core/net/address.c core/net/endpoint.c core/net/identity.c core/net/interface.c core/net/nodes.c core/net/tls.c core/net/user.c core/net/wire.c
