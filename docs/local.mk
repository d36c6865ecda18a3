# Manual pages and completion, which the program prints of its own tables; a cross compiler's cannot be run, a sanitizer's
# need not be.
EXTRA_DIST += core/cli/manual/ddpengine.1.in
MANUAL = $(patsubst %.la,docs/man/ddpengine-%.7,$(subst _,-,$(plugin_LTLIBRARIES))) docs/man/ddpengine.ini.5 docs/man/ddpengine.1
bashcompletiondir = $(datadir)/bash-completion/completions
zshcompletiondir = $(datadir)/zsh/site-functions
if WITH_MANUAL
all-local: docs/man/stamp
install-data-local: docs/man/stamp
	$(MKDIR_P) '$(DESTDIR)$(mandir)/man1' '$(DESTDIR)$(mandir)/man5' '$(DESTDIR)$(mandir)/man7' \
		'$(DESTDIR)$(bashcompletiondir)' '$(DESTDIR)$(zshcompletiondir)'
	for page in $(MANUAL); do $(INSTALL_DATA) $$page '$(DESTDIR)$(mandir)'/man$${page##*.} || exit; done
	$(INSTALL_DATA) docs/man/bash '$(DESTDIR)$(bashcompletiondir)/ddpengine'
	$(INSTALL_DATA) docs/man/zsh '$(DESTDIR)$(zshcompletiondir)/_ddpengine'
uninstall-local:
	for page in $(MANUAL); do rm -f '$(DESTDIR)$(mandir)'/man$${page##*.}/$${page##*/}; done
	rm -f '$(DESTDIR)$(bashcompletiondir)/ddpengine' '$(DESTDIR)$(zshcompletiondir)/_ddpengine'
endif
clean-local:
	rm -rf docs/man site
docs/man/stamp: ddpengine$(EXEEXT) $(plugin_LTLIBRARIES) core/cli/manual/ddpengine.1.in
	$(AM_V_GEN)rm -rf docs/man && $(MKDIR_P) docs/man
	@for page in $(plugin_LTLIBRARIES:.la=); do \
		kind=$${page%%_*} name=$$(echo "$${page#*_}" | tr _ -) && \
		./ddpengine manual $$kind.$$name >docs/man/ddpengine-$$kind-$$name.7 || exit; done
	@./ddpengine manual ini >docs/man/ddpengine.ini.5
	@./ddpengine manual commands >docs/man/commands && ./ddpengine manual date >docs/man/date
	@sed -e '/^@commands@$$/{' -e 'r docs/man/commands' -e d -e '}' -e '/^@date@$$/{' -e 'r docs/man/date' -e d -e '}' \
		$(srcdir)/core/cli/manual/ddpengine.1.in >docs/man/ddpengine.1
	@./ddpengine completion bash >docs/man/bash && ./ddpengine completion zsh >docs/man/zsh
	@touch $@

# The docs as a site, by Sphinx, where it is installed: site/html
html-local:
	@$(PYTHON) $(srcdir)/docs/site/build.py '$(PACKAGE_VERSION)' site

# whole folders, and the pages beside them
EXTRA_DIST += docs/design docs/hosts docs/language-models docs/recipes docs/site
EXTRA_DIST += docs/README.md docs/backends.md docs/checkpoints.md docs/coming-from.md docs/commands.md docs/config.md \
	docs/datasets.md docs/exit-codes.md docs/generate.py docs/gpu-results.md docs/gpu.md docs/inference.md \
	docs/installing.md docs/metrics.md docs/nets.md docs/overview.md docs/performance.md docs/plugins.md \
	docs/preflight.md docs/report.md docs/starting.md docs/troubleshooting.md docs/tuning.md docs/using.md
