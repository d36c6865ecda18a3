/* cli/manual/completion.c -- `ddpengine completion SHELL`: scripts that ask the program itself what may come next
 * (complete.c), so that they need not change with it. */
#include "cli/cli.h"
#include <string.h>

static const ddp_cli_option options[] = {
    {"bash", NULL, "for `source <(ddpengine completion bash)`, or a file in bash-completion's folder", DDP_TAKES_ROW,
     .most = 0},
    {"zsh", NULL, "for `source <(ddpengine completion zsh)`, or a file _ddpengine in a folder of fpath", DDP_TAKES_ROW,
     .most = 0},
    {"--help", NULL, NULL, DDP_TAKES_HELP, .letter = 'h'},
};

const ddp_command cli_completion_usage = {
    .name = "completion",
    .usage = "usage: ddpengine completion bash|zsh\n"
             "prints a script that completes commands, options, keys of the INI and plugins\n",
    .options = options,
    .option_count = DDP_COUNT(options),
    .footer = "",
    .example = "source <(ddpengine completion bash)",
};

/* Bash cuts words at "=" and ":" too, and replaces only what is behind the last of these. */
static const char bash[] = "# bash completion of ddpengine, printed by `ddpengine completion bash`\n"
                           "_ddpengine()\n"
                           "{\n"
                           "    local line=${COMP_LINE:0:COMP_POINT} words word before reply\n"
                           "    read -ra words <<<\"$line\"\n"
                           "    [[ $line == *[[:space:]] ]] && words+=('')\n"
                           "    word=${words[-1]} before=${words[-1]%\"${words[-1]##*[=:]}\"}\n"
                           "    [[ $COMP_WORDBREAKS == *=* ]] || before=\n"
                           "    COMPREPLY=()\n"
                           "    while IFS= read -r reply; do\n"
                           "        reply=${reply%%$'\\t'*}\n"
                           "        case $reply in\n"
                           "        :files) compopt -o default ;;\n"
                           "        :folders) compopt -o dirnames ;;\n"
                           "        *)\n"
                           "            [[ $reply != *[=.] ]] || compopt -o nospace\n"
                           "            COMPREPLY+=(\"${reply#\"$before\"}\")\n"
                           "            ;;\n"
                           "        esac\n"
                           "    done < <(\"${words[0]/#\\~/$HOME}\" " CLI_COMPLETE " \"${words[@]:1}\" 2>/dev/null)\n"
                           "}\n"
                           "complete -F _ddpengine ddpengine\n";

static const char zsh[] = "#compdef ddpengine\n"
                          "# zsh completion of ddpengine, printed by `ddpengine completion zsh`\n"
                          "_ddpengine()\n"
                          "{\n"
                          "    local reply word doc\n"
                          "    local -a whole open\n"
                          "    while IFS= read -r reply; do\n"
                          "        word=${reply%%$'\\t'*} doc=${reply#*$'\\t'}\n"
                          "        case $word in\n"
                          "        :files) compset -P '*='; _files ;;\n"
                          "        :folders) compset -P '*='; _files -/ ;;\n"
                          "        *[=.]) open+=(\"${word//:/\\\\:}:$doc\") ;;\n"
                          "        *) whole+=(\"${word//:/\\\\:}:$doc\") ;;\n"
                          "        esac\n"
                          "    done < <(${~words[1]} " CLI_COMPLETE " \"${(@)words[2,CURRENT]}\" 2>/dev/null)\n"
                          "    (( ! $#open )) || _describe -t settings setting open -S ''\n"
                          "    (( ! $#whole )) || _describe -t words word whole\n"
                          "}\n"
                          "if [[ $zsh_eval_context[-1] == loadautofunc ]]; then\n"
                          "    _ddpengine \"$@\"\n"
                          "else\n"
                          "    compdef _ddpengine ddpengine\n"
                          "fi\n";

int cli_command_completion(int argc, char **argv, ddp_log *log)
{
    ddp_text out = {0};
    char none; /* what the options would fill */
    int next, code = cli_parse_options(&cli_completion_usage, argc, argv, &none, &next);
    const char *shell;

    if (code >= 0) return code;
    shell = next < argc ? argv[next] : "";
    if (next + 1 < argc) return cli_usage_error(&cli_completion_usage, "too many arguments: ", argv[next + 1]);
    if (strcmp(shell, "bash") != 0 && strcmp(shell, "zsh") != 0)
        return cli_usage_error(&cli_completion_usage, "a shell is bash or zsh, not ",
                               shell[0] != '\0' ? shell : "none");
    ddp_text_printf(&out, "%s", shell[0] == 'b' ? bash : zsh);
    return cli_print_text(&out, log);
}
