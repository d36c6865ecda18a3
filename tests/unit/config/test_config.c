/* tests/unit/config/test_config.c -- INI files: syntax, includes, overrides, the core's sections, the rules between
 * keys, and that no text whatever crashes or leaks (run it under the sanitizers). Tables and values: test_options.c. */
#include "base/sys.h"
#include "config/config.h"
#include <setjmp.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[64];

static int enter_folder(void **state)
{
    const char *base = getenv("TMPDIR");

    (void)state;
    (void)snprintf(folder, sizeof(folder), "%.40s/ddp-config-XXXXXX", base != NULL ? base : "/tmp");
    return mkdtemp(folder) == NULL || chdir(folder) != 0;
}

static int leave_folder(void **state)
{
    ddp_err err = {0};

    (void)state;
    return ddp_remove_folder("sub", &err) != DDP_OK || chdir("/") != 0 || ddp_remove_folder(folder, &err) != DDP_OK;
}

static void write_bytes(const char *path, const void *data, size_t length)
{
    FILE *f = fopen(path, "w");

    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, length, f), length);
    assert_int_equal(fclose(f), 0);
}

static void write_text(const char *path, const char *text) { write_bytes(path, text, strlen(text)); }

/* ---- syntax ------------------------------------------------------------------------------------------------------ */
static ddp_ini *load_ini(const char *text)
{
    ddp_ini *ini = NULL;
    ddp_err err = {0};

    write_text("node1.ini", text);
    if (ddp_ini_load("node1.ini", &ini, &err) != DDP_OK) fail_msg("%s", err.msg);
    return ini;
}

static void expect_entry(const ddp_ini *ini, const char *section, const char *key, const char *value, const char *where)
{
    const ddp_ini_entry *e = config_ini_find(ini, section, key);

    assert_non_null(e);
    assert_string_equal(e->value, value);
    assert_string_equal(e->where, where);
}

static void expect_bad_bytes(const void *text, size_t length, const char *message)
{
    ddp_ini *ini = NULL;
    ddp_err err = {0};

    write_bytes("node1.ini", text, length);
    assert_int_equal(ddp_ini_load("node1.ini", &ini, &err), DDP_ERR_CONFIG);
    assert_string_equal(err.msg, message);
    assert_null(ini);
}

static void expect_bad(const char *text, const char *message) { expect_bad_bytes(text, strlen(text), message); }

static void syntax(void **state)
{
    ddp_ini *ini = load_ini("\xef\xbb\xbf; comment\r\n"
                            "# another\n"
                            "  # an indented one\n"
                            "[train]  ; of the section\r\n"
                            "lr = 0.1 ; of the value\n"
                            "seed=7;8\n"
                            "empty =\n"
                            "tabs\t=\t a\tb \t\n"
                            "url = tcp://host:1 = # x\n"
                            "\n"
                            "[empty]\n"
                            "[group]\n"
                            "rank: 1\n"
                            "[train]\n"
                            "none =; a comment\n"
                            "last = line");

    (void)state;
    expect_entry(ini, "train", "none", "", "node1.ini:15");
    expect_entry(ini, "train", "lr", "0.1", "node1.ini:5");
    expect_entry(ini, "train", "seed", "7;8", "node1.ini:6");
    expect_entry(ini, "train", "empty", "", "node1.ini:7");
    expect_entry(ini, "train", "tabs", "a b", "node1.ini:8");
    expect_entry(ini, "train", "url", "tcp://host:1 = # x", "node1.ini:9");
    expect_entry(ini, "group", "rank", "1", "node1.ini:13");
    expect_entry(ini, "train", "last", "line", "node1.ini:16");
    assert_null(config_ini_find(ini, "group", "lr"));
    assert_string_equal(ddp_ini_section_where(ini, "train"), "node1.ini:4");
    assert_string_equal(ddp_ini_section_where(ini, "empty"), "node1.ini:11");
    assert_null(ddp_ini_section_where(ini, "absent"));
    ddp_ini_free(ini);
    ddp_ini_free(load_ini(""));
    ddp_ini_free(load_ini("\n\n"));
    ddp_ini_free(NULL);
}

static void bad_lines(void **state)
{
    (void)state;
    expect_bad("[train]\nlr = 1\nnonsense\n[x]\n",
               "node1.ini:3: expected \"key = value\" or \"[section]\", not \"nonsense\"");
    expect_bad("[train]\nnonsense", "node1.ini:2: expected \"key = value\" or \"[section]\", not \"nonsense\"");
    expect_bad("[train]\n= 1\n", "node1.ini:2: no key before \"=\"");
    expect_bad("lr = 1\n[train]\n", "node1.ini:1: key \"lr\" is before the first section; only \"include\" may");
    expect_bad("[train\nlr = 1\n", "node1.ini:1: section header \"[train\" has no \"]\"");
    expect_bad("\n[]\n", "node1.ini:2: section header without a name");
    expect_bad("[a] b = c\n", "node1.ini:1: unexpected text after the section header: \" b = c\"");
    expect_bad("[train]\nlr = 1\n\nseed = 2\nlr = 3\n",
               "node1.ini:5: key \"lr\" in [train] was set before, at node1.ini:2");
    expect_bad("[train]\nlr = 1\nlr = 3\nnonsense\n",
               "node1.ini:3: key \"lr\" in [train] was set before, at node1.ini:2");
    expect_bad("[train]\nlr = 1\n[group]\n[train]\nlr = 3\n",
               "node1.ini:5: key \"lr\" in [train] was set before, at node1.ini:2");
    expect_bad(
        "[train]\nlr = 1\n  seed = 2\n",
        "node1.ini:3: \"seed = 2\" is indented; keys and sections start at the beginning of a line; an indented line "
        "continues the list above it");
    expect_bad(
        "[train]\nlr = 1\n  [group]\n",
        "node1.ini:3: \"[group]\" is indented; keys and sections start at the beginning of a line; an indented line "
        "continues the list above it");
    expect_bad("[train]\n  0.1\n", "node1.ini:2: indented line \"0.1\", but no key above it to continue");
    expect_bad("[train]\nbell = \a\n", "node1.ini:2: control character 0x07");
    expect_bad("[train]\n\1 = x\n", "node1.ini:2: control character 0x01"); /* the reader's own marker */
    expect_bad_bytes("[train]\nlr = 1\nseed\0 = 1\n", 26, "node1.ini:3: NUL byte; this is not a text file");
}

static void long_names(void **state)
{
    ddp_ini *ini = load_ini("[a23456789b23456789c23456789d23456789e2345678]\n"
                            "a23456789_b23456789_c23456789_d23456789_e23456789 = 1\n");

    (void)state;
    expect_entry(ini, "a23456789b23456789c23456789d23456789e2345678",
                 "a23456789_b23456789_c23456789_d23456789_e23456789", "1", "node1.ini:2");
    ddp_ini_free(ini);
    expect_bad("[a23456789_b23456789_c23456789_d23456789_e2345678901]\n",
               "node1.ini:1: a section's name has at most 49 bytes");
    expect_bad("[a]\na23456789_b23456789_c23456789_d23456789_e234567890 = 1\n",
               "node1.ini:2: a key has at most 49 bytes");
}

/* ---- long lines: inih's buffer is 200 bytes ---------------------------------------------------------------------- */
static void long_lines(void **state)
{
    char *line = calloc(1, 110000);

    (void)state;
    assert_non_null(line);
    for (size_t length = 150; length <= 4000; length += length < 450 ? 1 : 97) { /* every cut, blanks among them */
        char *text = calloc(1, length + 100);
        ddp_ini *ini;

        assert_non_null(text);
        for (size_t i = 0; i < length; i++) line[i] = i % 5 == 3 ? ' ' : "ab#;=,[]:"[i % 9];
        for (size_t i = 1; i < length; i++)
            if (line[i] == ';' && line[i - 1] == ' ') line[i] = 'x';
        line[0] = line[length - 1] = 'z';
        line[length] = '\0';
        (void)sprintf(text, "[train]\nkey =  %s  ; %s\nnext = 1\n", line, "c");
        ini = load_ini(text);
        expect_entry(ini, "train", "key", line, "node1.ini:2");
        expect_entry(ini, "train", "next", "1", "node1.ini:3");
        ddp_ini_free(ini);
        free(text);
    }
    free(line);
}

static void over_long_lines(void **state)
{
    static char text[110000];
    ddp_ini *ini;

    (void)state;
    memset(text, 'x', sizeof(text));
    memcpy(text, "[train]\nk = ", 12);
    expect_bad_bytes(text, 100012, "node1.ini:2: line is longer than 4096 bytes");
    text[8 + 4097] = '\n';
    expect_bad_bytes(text, 8 + 4098, "node1.ini:2: line is longer than 4096 bytes");
    write_bytes("node1.ini", text, 8 + 4096); /* the longest */
    {
        ddp_err err = {0};

        assert_int_equal(ddp_ini_load("node1.ini", &ini, &err), DDP_OK);
        assert_int_equal(strlen(config_ini_find(ini, "train", "k")->value), 4092);
        ddp_ini_free(ini);
    }
    memset(text + 8, ' ', 4000); /* blanks alone fill several pieces */
    memcpy(text + 8, "k =", 3);
    memcpy(text + 4008, "v\n", 2);
    text[4010] = '\0';
    ini = load_ini(text);
    expect_entry(ini, "train", "k", "v", "node1.ini:2");
    ddp_ini_free(ini);
    memset(text + 8, '#', 4000); /* a long comment is no value */
    memcpy(text + 4008, "\nk=1", 5);
    ini = load_ini(text);
    expect_entry(ini, "train", "k", "1", "node1.ini:3");
    ddp_ini_free(ini);
    memset(text + 8, 'k', 4000); /* no '=' within inih's buffer */
    text[4008] = '\0';
    memcpy(text + 3000, " = 1", 4);
    expect_bad(text, "node1.ini:2: expected \"key = value\" or \"[section]\", not "
                     "\"kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk\"");
}

static void lists_over_lines(void **state)
{
    static char text[20000];
    size_t length;
    ddp_ini *ini = load_ini("[plugins]\n"
                            "path = /a,\n"
                            "   /b ; the second\n"
                            "\n"
                            "; between\n"
                            "\t/c,\n"
                            "  /d:1, /e\n"
                            "[other]\n"
                            "path =\n"
                            "  x\n"
                            "  y,\n");

    (void)state;
    expect_entry(ini, "plugins", "path", "/a, /b, /c, /d:1, /e", "node1.ini:2");
    expect_entry(ini, "other", "path", "x, y,", "node1.ini:9");
    ddp_ini_free(ini);

    length = (size_t)sprintf(text, "[p]\nlist = a\n"); /* long lines that continue, too */
    for (int i = 0; i < 3; i++) {
        text[length++] = ' ';
        memset(text + length, 'b' + i, 1000);
        length += 1000;
        text[length++] = '\n';
    }
    text[length] = '\0';
    ini = load_ini(text);
    assert_int_equal(strlen(config_ini_find(ini, "p", "list")->value), 1 + 3 * 1002);
    assert_memory_equal(config_ini_find(ini, "p", "list")->value, "a, bbb", 6);
    ddp_ini_free(ini);
}

static void bounds(void **state)
{
    ddp_text t = {0};

    (void)state;
    ddp_text_printf(&t, "[a]\n");
    for (int i = 0; i < 4097; i++) ddp_text_printf(&t, "k%d = 1\n", i);
    expect_bad(t.data, "node1.ini:4098: more than 4096 keys");
    t.length = 0;
    for (int i = 0; i < 1025; i++) ddp_text_printf(&t, "[s%d]\n", i);
    expect_bad(t.data, "node1.ini:1025: more than 1024 sections");
    while (t.length <= 1 << 20) ddp_text_printf(&t, "# %1000d\n", 1);
    expect_bad(t.data, "node1.ini: larger than the 1048576 bytes allowed here");
    ddp_text_free(&t);
}

/* ---- includes and overrides -------------------------------------------------------------------------------------- */
static void includes(void **state)
{
    ddp_ini *ini;

    (void)state;
    (void)mkdir("sub", 0777);
    write_text("sub/common.ini", "include = base.ini\n[train]\nlr = 0.1\nseed = 1\n[group]\nrank = 5\n");
    write_text("sub/base.ini", "[train]\nlr = 0.5\nepochs = 9\n");
    ini = load_ini("# the node\ninclude = sub/common.ini\n[group]\nrank = 1\n");
    expect_entry(ini, "train", "lr", "0.1", "sub/common.ini:3");
    expect_entry(ini, "train", "epochs", "9", "sub/base.ini:3");
    expect_entry(ini, "train", "seed", "1", "sub/common.ini:4");
    expect_entry(ini, "group", "rank", "1", "node1.ini:4");
    assert_string_equal(ddp_ini_section_where(ini, "train"), "sub/base.ini:1");
    ddp_ini_free(ini);
}

static void bad_includes(void **state)
{
    char text[64], path[32];
    ddp_ini *ini = NULL;
    ddp_err err = {0};

    (void)state;
    (void)mkdir("sub", 0777);
    expect_bad("include = absent.ini\n", "node1.ini:1: include: absent.ini: no such file; a relative name is looked "
                                         "for beside the file that includes it");
    expect_bad("include = sub\n", "node1.ini:1: include: sub: not a regular file; name an INI file");
    assert_int_equal(mkfifo("pipe.ini", 0600), 0); /* nobody writes to it: to open it would wait without end */
    expect_bad("include = pipe.ini\n", "node1.ini:1: include: pipe.ini: not a regular file; name an INI file");
    expect_bad("include =\n[a]\n", "node1.ini:1: include names no file");
    expect_bad("\ninclude = node1.ini\n", "node1.ini:2: the include makes a loop: node1.ini -> node1.ini");
    write_text("sub/b.ini", "include = ../node1.ini\n");
    expect_bad("include = sub/b.ini\n",
               "sub/b.ini:1: the include makes a loop: node1.ini -> sub/b.ini -> sub/../node1.ini");
    write_text("sub/b.ini", "[train]\nlr\n");
    expect_bad("include = sub/b.ini\n", "sub/b.ini:2: expected \"key = value\" or \"[section]\", not \"lr\"");
    write_text("sub/b.ini", "");
    expect_bad("include = sub/b.ini\ninclude = sub/b.ini\n",
               "node1.ini:2: key \"include\" was set before, at node1.ini:1");
    expect_bad("include = sub/b.ini\n  sub/c.ini\n",
               "node1.ini:2: include takes one file, an indented line cannot continue it");
    for (int i = 0; i < 12; i++) {
        (void)snprintf(path, sizeof(path), "sub/%d.ini", i);
        (void)snprintf(text, sizeof(text), "include = %d.ini\n", i + 1);
        write_text(path, text);
    }
    expect_bad("include = sub/0.ini\n", "sub/7.ini:1: includes are nested deeper than 8");
    assert_int_equal(ddp_ini_load("absent.ini", &ini, &err), DDP_ERR_CONFIG);
    assert_string_equal(
        err.msg,
        "absent.ini: no such file; give the path of an INI file, absolute or relative to the current directory");
    assert_null(ini);
}

static void expect_bad_set(ddp_ini *ini, const char *assignment, const char *message)
{
    ddp_err err = {0};

    assert_int_equal(ddp_ini_set(ini, assignment, &err), DDP_ERR_CONFIG);
    assert_string_equal(err.msg, message);
}

static void overrides(void **state)
{
    ddp_ini *ini = load_ini("[train]\nlr = 0.1\n");
    ddp_err err = {0};
    char *big = calloc(1, 5000);

    (void)state;
    assert_int_equal(ddp_ini_set(ini, "train.lr=0.2", &err), DDP_OK);
    expect_entry(ini, "train", "lr", "0.2", "--set");
    assert_int_equal(ddp_ini_set(ini, " train.lr =\t0.3 ", &err), DDP_OK);
    expect_entry(ini, "train", "lr", "0.3", "--set");
    assert_int_equal(ddp_ini_set(ini, "backend.my.plugin.key=a=b.c", &err), DDP_OK);
    expect_entry(ini, "backend.my.plugin", "key", "a=b.c", "--set");
    assert_string_equal(ddp_ini_section_where(ini, "backend.my.plugin"), "--set");
    assert_int_equal(ddp_ini_set(ini, "output.dir=", &err), DDP_OK);
    expect_entry(ini, "output", "dir", "", "--set");
    expect_bad_set(ini, "train.lr", "--set train.lr: expected section.key=value");
    expect_bad_set(ini, "lr=0.1", "--set lr=0.1: expected section.key=value");
    expect_bad_set(ini, "lr=a.b", "--set lr=a.b: expected section.key=value");
    expect_bad_set(ini, ".lr=1", "--set .lr=1: expected section.key=value");
    expect_bad_set(ini, "train.=1", "--set train.=1: expected section.key=value");
    expect_bad_set(ini, "", "--set : expected section.key=value");
    expect_bad_set(ini, "output.dir=a ;b", "--set output.dir=a ;b: \" ;\" begins a comment, a value cannot hold it");
    expect_bad_set(ini, "output.dir=a\nb", "--set output.dir=a...: control character 0x0a");
    memset(big, 'x', 4999);
    expect_bad_set(ini, big, "--set xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx...: longer than 4096 bytes");
    free(big);
    ddp_ini_free(ini);
}

/* ---- the core's sections ----------------------------------------------------------------------------------------- */
#define MINIMAL "[model]\nplugin = mlp\n[data]\nplugin = idx\n"

static ddp_config load_config(const char *text, const char *const *sets, size_t count)
{
    ddp_config c = {0};
    ddp_err err = {0};

    write_text("node1.ini", text);
    if (ddp_config_load("node1.ini", sets, count, &c, &err) != DDP_OK) fail_msg("%s", err.msg);
    return c;
}

static void expect_bad_config(const char *text, const char *message)
{
    ddp_config c = {0};
    ddp_err err = {0};

    write_text("node1.ini", text);
    assert_int_equal(ddp_config_load("node1.ini", NULL, 0, &c, &err), DDP_ERR_CONFIG);
    assert_string_equal(err.msg, message);
    assert_null(c.ini);
}

static void defaults(void **state)
{
    ddp_config c = load_config(MINIMAL, NULL, 0);

    (void)state;
    assert_string_equal(c.group->backend, "auto");
    assert_string_equal(c.group->init_method, "");
    assert_int_equal(c.group->world_size, 0);
    assert_string_equal(c.group->rank, "0");
    assert_int_equal(c.group->rendezvous_timeout_ms, 300000);
    assert_int_equal(c.group->step_timeout_ms, 600000);
    assert_int_equal(c.group->auth, 0);
    assert_int_equal(c.train->device.count, 1);
    assert_string_equal(*(const char *const *)c.train->device.items, "cpu");
    assert_int_equal(c.train->epochs, 1);
    assert_int_equal(c.train->batch_size, 0);
    assert_int_equal(c.train->seed, 0);
    assert_int_equal(c.train->eval_every, 1);
    assert_int_equal(c.optimizer->algorithm, DDP_ALGORITHM_SGD);
    assert_true(c.optimizer->lr == 0.01 && c.optimizer->eps == 1e-8 && c.optimizer->weight_decay == 0);
    assert_int_equal(c.optimizer->betas.count, 2);
    assert_true(((const double *)c.optimizer->betas.items)[0] == 0.9);
    assert_true(((const double *)c.optimizer->betas.items)[1] == 0.999);
    assert_int_equal(c.ddp->bucket_size, 25 << 20);
    assert_int_equal(c.ddp->first_bucket_size, 1 << 20);
    assert_int_equal(c.ddp->overlap, DDP_OVERLAP_AUTO);
    assert_int_equal(c.loader->workers, 1);
    assert_int_equal(c.loader->prefetch, 4);
    assert_string_equal(c.checkpoint->dir, "");
    assert_int_equal(c.checkpoint->keep, 3);
    assert_string_equal(c.checkpoint->resume, "auto");
    assert_int_equal(c.output->log_every, 100);
    assert_int_equal(c.output->progress, DDP_PROGRESS_AUTO);
    assert_int_equal(c.plugin_path.count, 0);
    assert_string_equal(c.model, "mlp");
    assert_string_equal(c.data, "idx");
    assert_string_equal(c.eval, "");
    assert_string_equal(c.sampler, "distributed");
    assert_string_equal(ddp_settings_find(&c.settings, "model", "plugin")->where, "node1.ini:2");
    assert_string_equal(ddp_settings_find(&c.settings, "train", "lr") == NULL ? "none" : "", "none");
    ddp_config_free(&c);
    ddp_config_free(&c);
}

static void given(void **state)
{
    static const char *const sets[] = {"train.seed=18446744073709551615", "optimizer.lr=0.5", "optimizer.lr=1e-3"};
    ddp_config c =
        load_config(MINIMAL "[group]\ninit_method = tcp://10.0.0.1:29500\nworld_size = 4\nrank = 3\nauth = none\n"
                            "rendezvous_timeout = 2min\n[optimizer]\nalgorithm = adamw\nlr = 1\nbetas = 0.8,\n  0.99\n"
                            "[ddp]\noverlap = no\nbucket_size = 1 MB\n[plugins]\npath = /a\n  /b\n"
                            "[output]\nprogress = off\n[backend.nccl]\nanything = 1\n[hook.x]\n",
                    sets, 3);

    (void)state;
    assert_string_equal(c.group->init_method, "tcp://10.0.0.1:29500");
    assert_string_equal(c.group->rank, "3");
    assert_int_equal(c.group->auth, 1);
    assert_int_equal(c.group->rendezvous_timeout_ms, 120000);
    assert_int_equal(c.optimizer->algorithm, DDP_ALGORITHM_ADAMW);
    assert_true(c.optimizer->lr == 1e-3);
    assert_true(c.train->seed == UINT64_MAX);
    assert_true(((const double *)c.optimizer->betas.items)[1] == 0.99);
    assert_int_equal(c.ddp->overlap, DDP_OVERLAP_NO);
    assert_int_equal(c.ddp->bucket_size, 1000000);
    assert_int_equal(c.plugin_path.count, 2);
    assert_string_equal(((const char *const *)c.plugin_path.items)[1], "/b");
    assert_int_equal(c.output->progress, DDP_PROGRESS_OFF);
    assert_string_equal(ddp_settings_find(&c.settings, "optimizer", "lr")->where, "--set");
    ddp_config_free(&c);
}

static void bad_configs(void **state)
{
    (void)state;
    expect_bad_config("[train]\nbach_size = 1\n" MINIMAL,
                      "node1.ini:2: unknown key \"bach_size\" in [train]; did you mean \"batch_size\"?");
    expect_bad_config(MINIMAL "[loader]\nzzzzzzzz = 1\n",
                      "node1.ini:6: unknown key \"zzzzzzzz\" in [loader]; its keys are workers, prefetch");
    expect_bad_config(MINIMAL "[train]\ninclude = x.ini\n",
                      "node1.ini:6: unknown key \"include\" in [train]; an include comes before the first section");
    expect_bad_config(MINIMAL "[trian]\n", "node1.ini:5: unknown section [trian]; did you mean [train]?");
    expect_bad_config(MINIMAL "[bakend.gloo-tcp]\n",
                      "node1.ini:5: unknown section [bakend.gloo-tcp]; did you mean [backend.gloo-tcp]?");
    expect_bad_config(MINIMAL "[backend.]\n",
                      "node1.ini:5: section [backend.] names no plugin, as [backend.NAME] would");
    expect_bad_config(
        "[data]\nplugin = idx\n",
        "node1.ini: [model] needs the key \"plugin\": Model plugin that builds the graph; `ddpengine plugins` lists them.");
    expect_bad_config(
        "[model]\nplugin = mlp\n\n[data]\n",
        "node1.ini:4: [data] needs the key \"plugin\": Dataset plugin that gives the training samples; `ddpengine plugins` lists them.");
    expect_bad_config("[model]\nplugin =\n", "node1.ini:2: [model] plugin = : empty (string, required)");
    expect_bad_config(
        MINIMAL "[optimizer]\nlr = 0.1 # tuned\n",
        "node1.ini:6: [optimizer] lr = 0.1 # tuned: not a number (float, 0.., default 0.01); a comment after a "
        "value starts with \" ;\"");
    expect_bad_config(MINIMAL "[optimizer]\nalgorithm = adamv\n",
                      "node1.ini:6: [optimizer] algorithm = adamv: not one of sgd|adam|adamw; did you mean \"adam\"? "
                      "(sgd|adam|adamw, default sgd)");
    expect_bad_config(MINIMAL "[optimizer]\nalgorithm = adamwx\n", /* the nearest, not the first that is near */
                      "node1.ini:6: [optimizer] algorithm = adamwx: not one of sgd|adam|adamw; did you mean \"adamw\"? "
                      "(sgd|adam|adamw, default sgd)");
    expect_bad_config(MINIMAL "[optimizer]\nlr = 0.1\n  0.2\n",
                      "node1.ini:7: an indented line continues a list, but \"lr\" in [optimizer] takes one value");
    expect_bad_config(MINIMAL "[optimizer]\nbetas = 0.9\n",
                      "node1.ini:6: [optimizer] betas takes two numbers, as in 0.9, 0.999, not 1");
    expect_bad_config(MINIMAL "[optimizer]\nbetas = 0.9, 1\n", "node1.ini:6: [optimizer] betas must both be below 1");
    expect_bad_config(
        MINIMAL "[optimizer]\nbetas = 0.9, 2\n",
        "node1.ini:6: [optimizer] betas = 0.9, 2: \"2\" is out of range 0..1 (list of float, 0..1, default 0.9, "
        "0.999)");
    expect_bad_config(MINIMAL "[optimizer]\nnesterov = yes\n",
                      "node1.ini:6: [optimizer] nesterov = yes needs a momentum above 0");
    expect_bad_config(MINIMAL "[group]\nworld_size = 2\nrank = 2\n",
                      "node1.ini:7: [group] rank = 2 does not exist in world_size = 2 (node1.ini:6); ranks are 0..1");
    expect_bad_config(
        MINIMAL "[group]\nstep_timeout = 30\n",
        "node1.ini:6: [group] step_timeout = 30: not a time; write a whole number and a unit of ms, s, min, h, d, "
        "as in 30s (duration, 1s..30d, default 600s)");
}

static void bad_overrides(void **state)
{
    static const char *const sets[] = {"train.batch_size=64", "trian.lr=1"}, *const key[] = {"train.lr=1"},
                             *const none[] = {"train.zzzzzzzzzz=1"};
    ddp_config c = {0};
    ddp_err err = {0};

    (void)state;
    write_text("node1.ini", MINIMAL);
    assert_int_equal(ddp_config_load("node1.ini", sets, 2, &c, &err), DDP_ERR_CONFIG);
    assert_string_equal(err.msg, "--set: unknown section [trian]; did you mean [train]?");
    assert_int_equal(ddp_config_load("node1.ini", key, 1, &c, &err), DDP_ERR_CONFIG);
    assert_string_equal(err.msg, "--set: unknown key \"lr\" in [train]; move it to [optimizer]");
    assert_int_equal(ddp_config_load("node1.ini", none, 1, &c, &err), DDP_ERR_CONFIG);
    assert_non_null(strstr(err.msg, "in [train]; its keys are parallel, device, threads, pin, epochs"));
}

static void tables(void **state)
{
    const char *const *names;
    size_t count, sections = ddp_config_sections(&names);
    ddp_err err = {0};

    (void)state;
    assert_int_equal(sections, 15);
    for (size_t i = 0; i < sections; i++) {
        const ddp_option *options = ddp_config_options(names[i], &count);

        assert_true(count > 0);
        if (ddp_options_check(options, count, sizeof(*options), 4096, &err) != DDP_OK)
            fail_msg("[%s] %s", names[i], err.msg);
    }
    assert_null(ddp_config_options("hooks", &count));
    assert_int_equal(count, 0);
}

/* ---- batches ----------------------------------------------------------------------------------------------------- */
static void expect_batches(const char *keys, int64_t world, int64_t batch, int64_t accumulate, int64_t global)
{
    char text[256];
    ddp_batches b = {0};
    ddp_err err = {0};
    ddp_config c;

    (void)snprintf(text, sizeof(text), MINIMAL "[train]\n%s", keys);
    c = load_config(text, NULL, 0);
    if (ddp_config_batches(&c, world, &b, &err) != DDP_OK) fail_msg("%s: %s", keys, err.msg);
    assert_int_equal(b.batch_size, batch);
    assert_int_equal(b.accumulate, accumulate);
    assert_int_equal(b.global_batch, global);
    ddp_config_free(&c);
}

static void expect_bad_batches(const char *keys, int64_t world, const char *message)
{
    char text[256];
    ddp_batches b = {0};
    ddp_err err = {0};
    ddp_config c;

    (void)snprintf(text, sizeof(text), MINIMAL "[train]\n%s", keys);
    c = load_config(text, NULL, 0);
    assert_int_equal(ddp_config_batches(&c, world, &b, &err), DDP_ERR_CONFIG);
    assert_string_equal(err.msg, message);
    assert_int_equal(b.batch_size, 0);
    ddp_config_free(&c);
}

static void batches(void **state)
{
    (void)state;
    expect_batches("", 2, 64, 1, 128);
    expect_batches("batch_size = 10\n", 3, 10, 1, 30);
    expect_batches("accumulate = 4\n", 2, 64, 4, 512);
    expect_batches("global_batch = 128\n", 2, 64, 1, 128);
    expect_batches("global_batch = 128\nbatch_size = 16\n", 2, 16, 4, 128);
    expect_batches("global_batch = 128\naccumulate = 4\n", 2, 16, 4, 128);
    expect_batches("batch_size = 16\naccumulate = 4\n", 2, 16, 4, 128);
    expect_batches("global_batch = 128\nbatch_size = 16\naccumulate = 4\n", 2, 16, 4, 128);
    expect_bad_batches(
        "global_batch = 100\nbatch_size = 16\naccumulate = 1\n", 2,
        "[train] batch_size 16 (node1.ini:7), accumulate 1 (node1.ini:8), global_batch 100 (node1.ini:6), "
        "world_size 2: 100 cannot be divided by 32; batch_size x accumulate x world_size must be global_batch");
    expect_bad_batches(
        "global_batch = 128\nbatch_size = 16\naccumulate = 2\n", 2,
        "[train] batch_size 16 (node1.ini:7), accumulate 2 (node1.ini:8), global_batch 128 (node1.ini:6), "
        "world_size 2: that makes 64; batch_size x accumulate x world_size must be global_batch");
    expect_bad_batches(
        "global_batch = 10\neven_batches = yes\n", 3,
        "[train] global_batch 10 (node1.ini:6), world_size 3: 10 cannot be divided by 3 (it can with a world_size of "
        "1, 2, 5, 10); batch_size x accumulate x world_size must be global_batch");
    expect_bad_batches(
        "global_batch = 2\nbatch_size = 16\neven_batches = yes\n", 2,
        "[train] batch_size 16 (node1.ini:7), global_batch 2 (node1.ini:6), world_size 2: 2 cannot be divided by "
        "32; batch_size x accumulate x world_size must be global_batch");
    expect_bad_batches("global_batch = 2\n", 3,
                       "[train] global_batch 2 (node1.ini:6), world_size 3: there are fewer samples in a step than "
                       "ranks; batch_size x accumulate x world_size must be global_batch");
    expect_bad_batches("even_batches = no\nparallel = dp\n", 2,
                       "node1.ini:6: [train] even_batches = no needs ranks with one device each, parallel = ddp; leave "
                       "one of the two out");
    expect_bad_batches(
        "batch_size = 1073741824\naccumulate = 1048576\n", 65536,
        "[train] batch_size 1073741824 (node1.ini:6), accumulate 1048576 (node1.ini:7), world_size 65536: their "
        "product is over 64 bits; batch_size x accumulate x world_size must be global_batch");
}

/* Uneven ones: batch_size is the most that a micro-batch has. */
static void expect_uneven(const char *keys, int64_t world, int64_t batch, int64_t accumulate, int64_t global,
                          bool uneven)
{
    char text[256];
    ddp_batches b = {0};
    ddp_err err = {0};
    ddp_config c;

    expect_batches(keys, world, batch, accumulate, global);
    (void)snprintf(text, sizeof(text), MINIMAL "[train]\n%s", keys);
    c = load_config(text, NULL, 0);
    assert_int_equal(ddp_config_batches(&c, world, &b, &err), DDP_OK);
    assert_int_equal(b.uneven, uneven);
    ddp_config_free(&c);
}

static void uneven_batches(void **state)
{
    (void)state;
    expect_uneven("global_batch = 16\n", 3, 6, 1, 16, true);
    expect_uneven("global_batch = 16\nbatch_size = 8\n", 3, 6, 1, 16, true);
    expect_uneven("global_batch = 64\nbatch_size = 8\n", 3, 8, 3, 64, true);
    expect_uneven("global_batch = 64\naccumulate = 4\n", 3, 6, 4, 64, true);
    expect_uneven("global_batch = 100\naccumulate = 8\n", 3, 5, 7, 100, true); /* 34 samples are 7 times 5 at most */
    expect_uneven("global_batch = 10\naccumulate = 4\n", 2, 2, 3, 10, true);
    expect_uneven("global_batch = 16\nbatch_size = 8\n", 4, 4, 1, 16, false);
    expect_uneven("global_batch = 16\nbatch_size = 8\n", 1, 8, 2, 16, false);
    expect_uneven("batch_size = 8\n", 3, 8, 1, 24, false);
    expect_uneven("batch_size = 8\neven_batches = no\n", 3, 8, 1, 24, true);
    expect_uneven("global_batch = 12\neven_batches = no\n", 3, 4, 1, 12, true);
}

/* A run of 2 x 8 samples with other numbers of ranks, and what it is refused. */
static void kept_batch(void **state)
{
    const struct {
        int64_t world, most, batch, accumulate;
        bool uneven;
    } expected[] = {{1, 8, 8, 2, false}, {2, 8, 8, 1, false}, {3, 8, 6, 1, true},   {4, 8, 4, 1, false},
                    {5, 8, 4, 1, true},  {3, 2, 2, 3, true},  {16, 8, 1, 1, false}, {1, 5, 4, 4, false}};
    ddp_config c = load_config(MINIMAL "[train]\nbatch_size = 8\n", NULL, 0);
    ddp_batches b = {0};
    ddp_err err = {0};

    (void)state;
    for (size_t i = 0; i < DDP_COUNT(expected); i++) {
        assert_int_equal(ddp_config_keep_batch(&c, expected[i].world, 16, expected[i].most, &b, &err), DDP_OK);
        assert_int_equal(b.batch_size, expected[i].batch);
        assert_int_equal(b.accumulate, expected[i].accumulate);
        assert_int_equal(b.global_batch, 16);
        assert_int_equal(b.uneven, expected[i].uneven);
    }
    assert_int_equal(ddp_config_keep_batch(&c, 17, 16, 8, &b, &err), DDP_ERR_CONFIG);
    assert_non_null(strstr(err.msg, "there are fewer samples in a step than ranks"));
    ddp_config_free(&c);
    c = load_config(MINIMAL "[train]\nbatch_size = 8\neven_batches = yes\n", NULL, 0);
    assert_int_equal(ddp_config_keep_batch(&c, 2, 18, 4, &b, &err), DDP_OK); /* 9 a rank, not 4, 3 and 2 */
    assert_int_equal(b.batch_size, 3);
    assert_int_equal(b.accumulate, 3);
    assert_int_equal(ddp_config_keep_batch(&c, 3, 16, 8, &b, &err), DDP_ERR_CONFIG);
    assert_non_null(strstr(err.msg, "world_size 3: 16 cannot be divided by 3 (it can with a world_size of 1, 2, 4"));
    ddp_config_free(&c);
}

/* ---- printing and agreement -------------------------------------------------------------------------------------- */
static void round_trip(void **state)
{
    ddp_config first =
        load_config(MINIMAL "[group]\ninit_method = tcp://[::1]:29500\n[optimizer]\nlr = 0.1\neps = 1e-7\n"
                            "[ddp]\nbucket_size = 4096\n[output]\ndir = runs/a b#c\n[plugins]\n"
                            "path = /a, /b\n  ./c\n",
                    NULL, 0);
    ddp_text printed = {0};
    ddp_config second;

    (void)state;
    ddp_settings_print(&first.settings, &printed);
    assert_false(printed.failed);
    assert_non_null(strstr(printed.data, "[optimizer]\n# Update rule, as torch.optim's SGD, Adam or AdamW. "
                                         "(sgd|adam|adamw, default sgd)\nalgorithm = sgd   ; default\n"
                                         "# Learning rate. (float, 0.., default 0.01)\nlr = 0.1   ; node1.ini:8\n"));
    second = load_config(printed.data, NULL, 0);
    assert_int_equal(second.settings.count, first.settings.count);
    for (size_t i = 0; i < first.settings.count; i++) {
        assert_string_equal(second.settings.items[i].section, first.settings.items[i].section);
        assert_string_equal(second.settings.items[i].key, first.settings.items[i].key);
        assert_string_equal(second.settings.items[i].value, first.settings.items[i].value);
        assert_memory_equal(second.settings.items[i].where, "node1.ini:", 10); /* every key was printed */
    }
    assert_string_equal(ddp_settings_find(&second.settings, "ddp", "bucket_size")->value, "4KiB");
    assert_string_equal(ddp_settings_find(&second.settings, "output", "dir")->value, "runs/a b#c");
    ddp_text_free(&printed);
    ddp_config_free(&first);
    ddp_config_free(&second);
}

static void agreement(void **state)
{
    static const char *const sets[] = {"group.rank=1",          "train.threads=3",    "loader.workers=9",
                                       "output.progress=off",   "output.log_every=7", "output.dir=/tmp/x",
                                       "train.device=cpu:1",    "plugins.path=/z",    "group.init_method=tcp://a:1",
                                       "checkpoint.dir=/tmp/y", "loader.prefetch=8",  "train.pin=no"};
    ddp_config a = load_config(MINIMAL, NULL, 0), b = load_config(MINIMAL, sets, DDP_COUNT(sets)), c;
    char hash_a[65], hash_b[65], hash_c[65];
    ddp_text lines = {0}, other = {0};
    ddp_err err = {0};

    (void)state;
    ddp_settings_agreement(&a.settings, &lines);
    ddp_settings_agreement(&b.settings, &other);
    assert_string_equal(lines.data, other.data);
    assert_memory_equal(lines.data, "group.backend = auto\tdefault\ngroup.world_size = 0\tdefault\n", 56);
    assert_non_null(strstr(lines.data, "\nmodel.plugin = mlp\tnode1.ini:2\n"));
    assert_null(strstr(lines.data, "group.rank"));
    assert_null(strstr(lines.data, ".dir"));
    assert_int_equal(ddp_settings_hash(&a.settings, hash_a, &err), DDP_OK);
    assert_int_equal(ddp_settings_hash(&b.settings, hash_b, &err), DDP_OK);
    assert_string_equal(hash_a, hash_b);
    assert_int_equal(strlen(hash_a), 64);
    c = load_config("; moved by a line\n" MINIMAL "[optimizer]\nlr = 1e-2\n", NULL, 0);
    assert_int_equal(ddp_settings_hash(&c.settings, hash_c, &err), DDP_OK);
    assert_string_equal(hash_a, hash_c); /* places and ways of writing do not count */
    ddp_config_free(&c);
    c = load_config(MINIMAL "[optimizer]\nlr = 0.02\n", NULL, 0);
    assert_int_equal(ddp_settings_hash(&c.settings, hash_c, &err), DDP_OK);
    assert_string_not_equal(hash_a, hash_c);
    ddp_config_free(&c);
    ddp_text_free(&lines);
    ddp_text_free(&other);
    ddp_config_free(&a);
    ddp_config_free(&b);
}

/* As a checkpoint keeps them: one line each, in ASCII, of bounded length. */
static void text_of_settings(void **state)
{
    char ini[4096], value[2001];
    ddp_text text = {0}, other = {0};
    ddp_config c;

    (void)state;
    memset(value, 'n', sizeof(value) - 1);
    value[sizeof(value) - 1] = '\0';
    (void)snprintf(ini, sizeof(ini), "%s[train]\nfreeze = caf\xc3\xa9.*, %s\nthreads = 3\n[optimizer]\nlr = 1e-2\n",
                   MINIMAL, value);
    c = load_config(ini, NULL, 0);
    ddp_settings_text(&c.settings, &text);
    ddp_config_free(&c);
    assert_false(text.failed);
    assert_memory_equal(text.data, "group.backend = auto\ngroup.world_size = 0\n", 42);
    assert_non_null(strstr(text.data, "\noptimizer.lr = 0.01\n"));
    assert_non_null(strstr(text.data, "\ntrain.freeze = caf\\xc3\\xa9.*, nnn"));
    assert_non_null(strstr(text.data, "nnn... (2009 bytes, hash "));
    assert_null(strstr(text.data, "threads"));
    for (const char *line = text.data, *end; *line != '\0'; line = end + 1) {
        end = strchr(line, '\n');
        assert_true(end - line < 320);
    }
    ini[strlen(MINIMAL) + 1500] = 'm'; /* far behind what is kept of it */
    c = load_config(ini, NULL, 0);
    ddp_settings_text(&c.settings, &other);
    assert_string_not_equal(text.data, other.data);
    assert_int_equal(text.length, other.length);
    ddp_config_free(&c);
    ddp_text_free(&other);
    ddp_text_free(&text);
}

/* ---- any text ---------------------------------------------------------------------------------------------------- */
static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13; /* xorshift64: G. Marsaglia, 2003 */
    *state ^= *state >> 7;
    return *state ^= *state << 17;
}

/* Cuts, doubles, swaps and pokes; `text` has room for 2 * 4096 bytes. */
static size_t mutate(char *text, size_t length, uint64_t *random)
{
    static const char alphabet[] = "[]=:;#, \t\r\n\0\1\"'.ab0-\xff\xef\xbb\xbf\x7f";
    size_t changes = 1 + next_random(random) % 8;

    while (changes-- > 0 && length > 1) {
        size_t at = next_random(random) % length, span = next_random(random) % (length - at);

        switch (next_random(random) % 4) {
        case 0: text[at] = alphabet[next_random(random) % (sizeof(alphabet) - 1)]; break;
        case 1:
            memmove(text + at, text + at + span, length - at - span);
            length -= span;
            break;
        case 2:
            if (length + span > 8192) break;
            memmove(text + at + span, text + at, length - at);
            length += span;
            break;
        default: text[at] = (char)next_random(random); break;
        }
    }
    return length;
}

static void any_text(void **state)
{
    static const char seed_text[] =
        "include = sub/common.ini\n; c\n[group]\nbackend = gloo-tcp\nworld_size = 2 ; two\nrendezvous_timeout = 30s\n"
        "[train]\nbatch_size = 64\nseed = 1\n[model]\nplugin = mlp\n[data]\nplugin = idx\n[optimizer]\nlr = 1e-2\n"
        "betas = 0.9,\n  0.99\n[ddp]\nbucket_size = 25MiB\n[plugins]\npath = /a\n   /b,\n   /c\n[backend.gloo-tcp]\n"
        "key = "
        "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"
        "yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy "
        "yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy\n";
    uint64_t random = 20261;
    size_t good = 0, bad = 0;

    (void)state;
    (void)mkdir("sub", 0777);
    write_text("sub/common.ini", "[train]\nepochs = 2\n");
    for (int round = 0; round < 4000; round++) {
        char text[8192 + 64];
        size_t length = sizeof(seed_text) - 1;
        ddp_config c = {0};
        ddp_text printed = {0};
        ddp_err err = {0};

        memcpy(text, seed_text, length);
        length = mutate(text, length, &random);
        write_bytes("fuzz.ini", text, length);
        if (ddp_config_load("fuzz.ini", NULL, 0, &c, &err) == DDP_OK) {
            ddp_settings_print(&c.settings, &printed);
            ddp_config_free(&c);
            write_bytes("fuzz2.ini", printed.data, printed.length); /* what is in force can always be read again */
            if (ddp_config_load("fuzz2.ini", NULL, 0, &c, &err) != DDP_OK) fail_msg("round %d: %s", round, err.msg);
            ddp_text_free(&printed);
            good++;
        } else {
            assert_int_equal(err.status, DDP_ERR_CONFIG);
            assert_true(err.msg[0] != '\0');
            bad++;
        }
        ddp_config_free(&c);
    }
    assert_true(good > 100 && bad > 1000); /* the mutations do reach both */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(syntax),      cmocka_unit_test(bad_lines),       cmocka_unit_test(long_names),
        cmocka_unit_test(long_lines),  cmocka_unit_test(over_long_lines), cmocka_unit_test(lists_over_lines),
        cmocka_unit_test(bounds),      cmocka_unit_test(includes),        cmocka_unit_test(bad_includes),
        cmocka_unit_test(overrides),   cmocka_unit_test(defaults),        cmocka_unit_test(given),
        cmocka_unit_test(bad_configs), cmocka_unit_test(bad_overrides),   cmocka_unit_test(tables),
        cmocka_unit_test(batches),     cmocka_unit_test(uneven_batches),  cmocka_unit_test(kept_batch),
        cmocka_unit_test(round_trip),  cmocka_unit_test(agreement),       cmocka_unit_test(text_of_settings),
        cmocka_unit_test(any_text),
    };

    return cmocka_run_group_tests(tests, enter_folder, leave_folder);
}
