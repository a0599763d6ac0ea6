# SPDX-License-Identifier: LGPL-2.1-or-later
#
# nbdfs: one makefile for everything. "make help" lists what it can do.
# CFLAGS, CPPFLAGS and LDFLAGS are the user's; what the sources need is added
# to them and never replaces them.

VERSION = 1.0

# ------------------------------------------------------------------ settings

CC ?= cc
AR ?= ar
INSTALL ?= install
PKG_CONFIG ?= pkg-config
CFLAGS ?= -O2 -g
CLANG ?= clang
CLANG_FORMAT ?= clang-format
PROVE ?= prove

prefix ?= /usr/local
exec_prefix ?= $(prefix)
bindir ?= $(exec_prefix)/bin
datadir ?= $(prefix)/share
mandir ?= $(datadir)/man
docdir ?= $(datadir)/doc/nbdfs
bashdir ?= $(datadir)/bash-completion/completions
unitdir ?= $(prefix)/lib/systemd/system

# Programs and tests that run at the same time.
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
TEST_JOBS ?= 2

# V=1 shows commands; DEVELOPER=1 makes warnings errors and adds some;
# SANITIZE=address,undefined or SANITIZE=thread instruments.
V ?=
DEVELOPER ?=
SANITIZE ?=
FUZZER ?=

comma := ,
empty :=
space := $(empty) $(empty)
squote := '

config := $(if $(SANITIZE),$(subst $(comma),-,$(SANITIZE)),release)
BUILD ?= build/$(config)

ifeq ($(V),1)
Q :=
say = @:
else
Q := @
say = @printf '  %-8s %s\n'
endif

# --------------------------------------------------------------------- flags

warnings := -Wall -Wextra -Wshadow -Wmissing-prototypes -Wstrict-prototypes \
	-Wold-style-definition -Wmissing-declarations -Wredundant-decls \
	-Wpointer-arith -Wwrite-strings -Wvla -Wundef -Wformat \
	-Wformat-security -Wimplicit-fallthrough -Wdate-time \
	-Werror=implicit-function-declaration

ifeq ($(DEVELOPER),1)
warnings += -Werror -Walloca -Wdouble-promotion \
	-Wframe-larger-than=16384 -Wunused-macros -Winit-self
ifeq ($(findstring clang,$(shell $(CC) --version 2>/dev/null)),)
warnings += -Wlogical-op -Wduplicated-cond
endif
endif

# Fortified functions need optimisation, and hide bugs from the sanitizers.
optimised := $(filter-out -O0,$(filter -O%,$(CFLAGS)))
hardening := -fPIE -fstack-protector-strong
# What not every compiler has, nor for every machine.
takes = $(shell echo 'int x;' | $(CC) -Werror $(1) -c -x c -o /dev/null - \
	2>/dev/null && echo $(1))
hardening += $(call takes,-fstack-clash-protection) \
	$(call takes,-fcf-protection) $(call takes,-mbranch-protection=standard)
link_hardening := -pie -Wl,-z,relro -Wl,-z,now -Wl,-z,noexecstack
ifeq ($(SANITIZE),)
hardening += $(if $(optimised),-U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2)
endif

sanitize := $(if $(SANITIZE),-fsanitize=$(SANITIZE) -fno-omit-frame-pointer \
	-fno-sanitize-recover=all)
fuzzer := $(if $(FUZZER),-fsanitize=fuzzer-no-link)

base_cflags := -std=gnu11 $(warnings) $(hardening) $(sanitize) $(fuzzer) \
	-pthread -D_GNU_SOURCE -D_FILE_OFFSET_BITS=64 \
	-DNBDFS_VERSION=\"$(VERSION)\"
base_ldflags := -pthread $(sanitize) $(link_hardening)

# $(call need,MODULE,DEBIAN PACKAGE): stops where the library is missing.
need = $(if $(shell $(PKG_CONFIG) --exists $(1) 2>/dev/null && echo yes),,\
	$(error $(if $(shell command -v $(firstword $(PKG_CONFIG))),$(1) is \
	missing (Debian package $(2)),$(firstword $(PKG_CONFIG)) is missing \
	(Debian package pkg-config)); "make deps" installs what is needed))
# Headers of libraries are system headers: their warnings are not ours.
pkg_cflags = $(call need,$(1),$(2))$(patsubst -I%,-isystem %,\
	$(shell $(PKG_CONFIG) --cflags $(1)))
pkg_libs = $(call need,$(1),$(2))$(shell $(PKG_CONFIG) --libs $(1))

# Asked for when first used, and then only once.
fuse_cflags = $(eval fuse_cflags := $$(call pkg_cflags,fuse3,libfuse3-dev))$(fuse_cflags)
fuse_libs = $(eval fuse_libs := $$(call pkg_libs,fuse3,libfuse3-dev))$(fuse_libs)
nbd_cflags = $(eval nbd_cflags := $$(call pkg_cflags,libnbd,libnbd-dev))$(nbd_cflags)
nbd_libs = $(eval nbd_libs := $$(call pkg_libs,libnbd,libnbd-dev))$(nbd_libs)
zlib_libs = $(eval zlib_libs := $$(call pkg_libs,zlib,zlib1g-dev))$(zlib_libs)
engine_libs = $(nbd_libs) $(zlib_libs)
check_cflags = $(eval check_cflags := $$(call pkg_cflags,check,check))$(check_cflags)
check_libs = $(eval check_libs := $$(call pkg_libs,check,check))$(check_libs)

# ------------------------------------------------------------------- sources

copy_src := $(wildcard engine/copy_main.c engine/cli_*.c)
engine_src := $(filter-out $(copy_src),$(wildcard engine/*.c))
fs_src := $(wildcard fs/*.c)
unit_src := $(wildcard tests/unit/check_*.c)
helper_src := $(wildcard tests/helpers/*.c)
fsrandom_src := $(wildcard tests/fsrandom/*.c)
evilnbd_src := $(wildcard tests/evilnbd/*.c)
fuzz_src := $(wildcard tests/fuzz/fuzz_*.c)
integration := $(sort $(wildcard tests/t/*.t))

objects = $(patsubst %.c,$(BUILD)/%.o,$(1))
engine_obj := $(call objects,$(engine_src))
fs_obj := $(call objects,$(fs_src))
copy_obj := $(call objects,$(copy_src))
unit_obj := $(call objects,$(unit_src))
helper_obj := $(call objects,$(helper_src))
fsrandom_obj := $(call objects,$(fsrandom_src))
evilnbd_obj := $(call objects,$(evilnbd_src))
fuzz_obj := $(call objects,$(fuzz_src))

libengine := $(BUILD)/libengine.a
# A program without its main file is left out.
programs := $(strip $(if $(wildcard fs/main.c),nbdfs) \
	$(if $(wildcard engine/copy_main.c),nbdfs-copy))
program_files := $(addprefix $(BUILD)/,$(programs))
unit_fs := $(patsubst %.o,%,$(filter $(BUILD)/tests/unit/check_fs_%,$(unit_obj)))
unit_engine := $(filter-out $(unit_fs),$(patsubst %.o,%,$(unit_obj)))
units := $(unit_engine) $(unit_fs)
fsrandom := $(if $(fsrandom_src),$(BUILD)/tests/helpers/fsrandom)
evilnbd := $(if $(evilnbd_src),$(BUILD)/tests/helpers/evilnbd)
helpers := $(patsubst %.o,%,$(helper_obj))
# Helpers that show the engine alone.
engine_helpers := $(filter %/nbdlist,$(helpers))
slowio := $(BUILD)/tests/helpers/slowio.so
fuzzers := $(patsubst %.o,%,$(fuzz_obj))
# The same targets for files that are given, which needs no fuzzer.
replay_obj := $(BUILD)/tests/fuzz/replay.o
replays := $(addprefix $(BUILD)/tests/helpers/,$(notdir $(fuzzers)))

# The programs of the default configuration also appear at the top.
links := $(if $(filter build/release,$(BUILD)),$(programs))

.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
.SUFFIXES:
.PHONY: all programs unit-programs test-programs fuzz-programs check check-unit \
	check-integration check-full check-asan check-tsan run-tests fuzz lint \
	spdx format bench bench-quick demo deps install uninstall dist deb \
	clean help FORCE

all: programs
programs: $(program_files) $(links) $(if $(programs),,$(libengine))
unit-programs: $(units)
test-programs: programs $(units) $(helpers) $(fsrandom) $(evilnbd) $(replays)

# --------------------------------------------------------------------- rules

# Changed flags rebuild the objects, a changed list of files the programs.
stamp_text = $(subst $(squote),$(squote)\$(squote)$(squote),$(1))
define stamp
	@mkdir -p $(@D)
	@printf '%s\n' '$(call stamp_text,$(1))' | cmp -s - $@ || \
		printf '%s\n' '$(call stamp_text,$(1))' >$@
endef
$(BUILD)/flags: FORCE
	$(call stamp,$(CC) $(base_cflags) $(CPPFLAGS) $(CFLAGS))
$(BUILD)/files: FORCE
	$(call stamp,$(engine_src) $(copy_src) $(fs_src) $(fsrandom_src) $(evilnbd_src) $(base_ldflags) $(LDFLAGS))

define compile
	$(say) CC $<
	@mkdir -p $(@D)
	$(Q)$(CC) $(base_cflags) $(1) $(CPPFLAGS) $(CFLAGS) -MMD -MP -c -o $@ $<
endef
define link
	$(say) LINK $@
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) $(base_ldflags) $(LDFLAGS) -o $@ \
		$(filter %.o %.a,$^) $(1) $(LDLIBS)
endef

# The engine does not get the flags of FUSE, nor fs/ those of libnbd: what
# reaches across does not compile.
$(BUILD)/engine/%.o: engine/%.c $(BUILD)/flags
	$(call compile,$(nbd_cflags))
$(BUILD)/fs/%.o: fs/%.c $(BUILD)/flags
	$(call compile,-Iengine $(fuse_cflags))
$(BUILD)/tests/unit/check_fs_%.o: tests/unit/check_fs_%.c $(BUILD)/flags
	$(call compile,-Iengine -Ifs $(fuse_cflags) $(check_cflags))
$(BUILD)/tests/unit/%.o: tests/unit/%.c $(BUILD)/flags
	$(call compile,-Iengine $(nbd_cflags) $(check_cflags))
$(BUILD)/tests/helpers/%.o: tests/helpers/%.c $(BUILD)/flags
	$(call compile,-Iengine $(if $(findstring nbdlist,$@),$(nbd_cflags)))
$(BUILD)/tests/fsrandom/%.o: tests/fsrandom/%.c $(BUILD)/flags
	$(call compile)
$(BUILD)/tests/evilnbd/%.o: tests/evilnbd/%.c $(BUILD)/flags
	$(call compile)
$(BUILD)/tests/fuzz/%.o: tests/fuzz/%.c $(BUILD)/flags
	$(call compile,-Iengine $(nbd_cflags))

$(libengine): $(engine_obj) $(BUILD)/files
	$(say) AR $@
	@rm -f $@
	$(Q)$(AR) rcs $@ $(engine_obj)

$(BUILD)/nbdfs: $(fs_obj) $(libengine) $(BUILD)/files
	$(call link,$(fuse_libs) $(engine_libs))
$(BUILD)/nbdfs-copy: $(copy_obj) $(libengine) $(BUILD)/files
	$(call link,$(engine_libs))
$(unit_engine): %: %.o $(libengine)
	$(call link,$(check_libs) $(engine_libs))
$(unit_fs): %: %.o $(filter-out %/main.o,$(fs_obj)) $(libengine)
	$(call link,$(check_libs) $(fuse_libs) $(engine_libs))
$(filter-out $(engine_helpers),$(helpers)): %: %.o
	$(call link)
$(engine_helpers): %: %.o $(libengine)
	$(call link,$(engine_libs))
$(fsrandom): $(fsrandom_obj) $(BUILD)/files
	$(call link)
$(evilnbd): $(evilnbd_obj) $(BUILD)/files
	$(call link)
# Preloaded into the programs that the benchmark measures.
$(slowio): tests/bench/slowio.c $(BUILD)/flags
	$(say) CC $@
	@mkdir -p $(@D)
	$(Q)$(CC) -std=gnu11 $(warnings) -O2 -D_GNU_SOURCE -U_FORTIFY_SOURCE \
		-shared -fPIC -o $@ $< -ldl
$(replays): $(BUILD)/tests/helpers/%: $(BUILD)/tests/fuzz/%.o $(replay_obj) \
		$(libengine)
	$(call link,$(engine_libs))
$(fuzzers): %: %.o $(libengine)
	$(call link,-fsanitize=fuzzer $(engine_libs))

$(links): %: $(BUILD)/%
	@ln -sf $< $@

-include $(patsubst %.o,%.d,$(engine_obj) $(fs_obj) $(copy_obj) $(unit_obj) \
	$(helper_obj) $(fsrandom_obj) $(evilnbd_obj) $(fuzz_obj) \
	$(replay_obj))

# --------------------------------------------------------------------- tests

# A make within make keeps the jobs that the user asked for.
again = $(MAKE) --no-print-directory $(if $(findstring -j,$(MAKEFLAGS)),,-j$(JOBS))

# The thread sanitizer of older compilers cannot live with the many random bits
# that newer kernels put into addresses.
fixed = $(if $(filter thread,$(SANITIZE)),$(shell setarch -R true \
	2>/dev/null && echo setarch -R))

# Which tests: TESTS="tests/t/read.t ..." picks some.
TESTS ?= $(units) $(integration)
run-tests:
	@NBDFS="$(abspath $(BUILD))/nbdfs" \
	NBDFS_COPY="$(abspath $(BUILD))/nbdfs-copy" \
	NBDFS_HELPERS="$(abspath $(BUILD))/tests/helpers" \
	$(if $(SANITIZE),NBDFS_TEST_TIMEOUT=$${NBDFS_TEST_TIMEOUT:-900}) \
	$(fixed) $(PROVE) --jobs $(TEST_JOBS) --timer --failures --comments \
	--exec tests/run $(TESTS)

check: deps
	@$(again) spdx test-programs
	@$(MAKE) --no-print-directory run-tests
check-unit: deps
	@$(again) unit-programs
	@$(MAKE) --no-print-directory run-tests TESTS="$(units)"
check-integration: deps
	@$(again) test-programs
	@$(MAKE) --no-print-directory run-tests TESTS="$(integration)"
# The same tests under the sanitizers: tests/lib.sh looks for their reports.
check-asan: deps
	@$(again) SANITIZE=address,undefined test-programs
	@$(MAKE) --no-print-directory SANITIZE=address,undefined run-tests
check-tsan: deps
	@$(again) SANITIZE=thread test-programs
	@$(MAKE) --no-print-directory SANITIZE=thread run-tests
# Everything, with the tests that take long.
check-full: deps
	@NBDFS_TEST_FULL=1 $(MAKE) --no-print-directory check
	@$(MAKE) --no-print-directory check-asan
	@$(MAKE) --no-print-directory check-tsan
	@$(MAKE) --no-print-directory lint

fuzz:
	@$(again) CC=$(CLANG) BUILD=build/fuzz SANITIZE=address,undefined \
		FUZZER=1 fuzz-programs
fuzz-programs: $(fuzzers)

lint:
	@CLANG_FORMAT=$(CLANG_FORMAT) contrib/lint
spdx:
	@contrib/lint spdx
format:
	$(CLANG_FORMAT) -i $(wildcard engine/*.[ch] fs/*.[ch] tests/*/*.[ch])

# BENCH="--only=read* --json=FILE" and the like go to tests/bench/run.
bench_helpers := $(addprefix $(BUILD)/tests/helpers/,measure mkimage openmany \
	samedata seekmap) $(slowio)
BENCH ?=
run_bench = @NBDFS="$(abspath $(BUILD))/nbdfs" \
	NBDFS_COPY="$(abspath $(BUILD))/nbdfs-copy" \
	NBDFS_HELPERS="$(abspath $(BUILD))/tests/helpers" tests/bench/run
bench: programs $(bench_helpers)
	$(run_bench) $(BENCH)
bench-quick: programs $(bench_helpers)
	$(run_bench) --quick $(BENCH)

demo: deps
	@$(again) programs $(BUILD)/tests/helpers/seekmap
	@NBDFS="$(abspath $(BUILD))/nbdfs" \
	NBDFS_HELPERS="$(abspath $(BUILD))/tests/helpers" contrib/demo

deps:
	@contrib/install-deps

# -------------------------------------------------------------- installation

man1 := $(wildcard man/*.1)
completions := $(wildcard contrib/completion/*.bash)
zsh_completions := $(wildcard contrib/completion/_*)
systemd_units := $(wildcard contrib/*.service)
docs := $(wildcard README.md NEWS SECURITY.md COPYING contrib/fstab.example)

install: programs
	$(INSTALL) -d $(DESTDIR)$(bindir) $(DESTDIR)$(mandir)/man1 \
		$(DESTDIR)$(docdir)
	$(INSTALL) -m 755 $(program_files) $(DESTDIR)$(bindir)
	$(if $(man1),$(INSTALL) -m 644 $(man1) $(DESTDIR)$(mandir)/man1)
	$(INSTALL) -m 644 $(docs) $(DESTDIR)$(docdir)
	$(foreach f,$(completions),$(INSTALL) -D -m 644 $(f) \
	$(DESTDIR)$(bashdir)/$(notdir $(f:.bash=)) &&) :
	ln -sf nbdfs $(DESTDIR)$(bashdir)/nbdfs-copy
	$(foreach f,$(zsh_completions),$(INSTALL) -D -m 644 $(f) \
	$(DESTDIR)$(datadir)/zsh/site-functions/$(notdir $(f)) &&) :
	$(foreach f,$(systemd_units),$(INSTALL) -D -m 644 $(f) \
	$(DESTDIR)$(unitdir)/$(notdir $(f)) &&) :

uninstall:
	rm -f $(addprefix $(DESTDIR)$(bindir)/,nbdfs nbdfs-copy) \
	$(addprefix $(DESTDIR)$(mandir)/man1/,$(notdir $(man1))) \
	$(addprefix $(DESTDIR)$(docdir)/,$(notdir $(docs))) \
	$(addprefix $(DESTDIR)$(bashdir)/,nbdfs nbdfs-copy) \
	$(addprefix $(DESTDIR)$(datadir)/zsh/site-functions/,$(notdir $(zsh_completions))) \
	$(addprefix $(DESTDIR)$(unitdir)/,$(notdir $(systemd_units)))
	-rmdir $(DESTDIR)$(docdir)

release := nbdfs-$(VERSION)
# From a checkout what is committed, else what is there.
dist:
	@if [ -e .git ]; then \
		git archive --format=tar --prefix=$(release)/ HEAD; \
	else \
		tar -c --exclude=./build --exclude='./nbdfs*.tar.xz' \
			--exclude='./*.deb' --exclude=./nbdfs \
			--exclude=./nbdfs-copy --transform 's,^\.,$(release),' .; \
	fi | xz -9 >$(release).tar.xz
	@echo $(release).tar.xz

deb: dist
	@dpkg-parsechangelog -l contrib/debian/changelog -S Version | \
		grep -q '^$(VERSION)-' || { echo "contrib/debian/changelog is not \
	of version $(VERSION)" >&2; exit 1; }
	rm -rf build/deb
	mkdir -p build/deb
	tar -C build/deb -xf $(release).tar.xz
	cp -r contrib/debian build/deb/$(release)/debian
	cd build/deb/$(release) && dpkg-buildpackage -us -uc -b
	cp build/deb/*.deb .

clean:
	rm -rf build
	rm -f nbdfs nbdfs-copy

define help_text
make                  the programs, ./nbdfs and ./nbdfs-copy
make check            all tests (installs what is missing on Debian)
make check-unit       tests of single modules, without servers
make check-integration  tests with real servers and real mounts
make check-asan       the tests with address and undefined sanitizer
make check-tsan       the tests with the thread sanitizer
make check-full       all of these, long tests, and lint
make fuzz             fuzz targets, with clang, in build/fuzz
make lint             format, static checks and house rules
make format           formats the sources
make bench            measures; bench-quick: a shorter round
make demo             shows a mounted disk
make deps             installs what building and testing need
make install          to prefix=$(prefix), below DESTDIR
make uninstall        removes that again
make dist, make deb   a source archive, a Debian package
make clean            removes all that was built

Variables: V=1 DEVELOPER=1 SANITIZE=address,undefined|thread CC=clang
CFLAGS LDFLAGS BUILD=folder TESTS="tests/t/a.t ..." JOBS=n TEST_JOBS=n
endef
export help_text
help:
	@printf '%s\n' "$$help_text"
