# sources of core/group
