# sources of core/observe
