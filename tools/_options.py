"""The options that commands share, declared once: names as in llama.cpp, help, how their values are named in the help.

Owns the declarations only: defaults stand in the commands' signatures, ranges in llmkit/params.py. Those of sampling
are in tools/_sampling_options.py, those that every command has in llmkit/shell/common.py.
"""

from typing import Annotated

import typer

from llmkit.params import KV_TYPES
from llmkit.shell.completion import model_names

ModelOption = Annotated[
    str | None,
    typer.Option(
        "-m",
        "--model",
        metavar="PATH|NAME",
        help="A model file, or the name of a pulled model.",
        autocompletion=model_names,
    ),
]
OverrideOption = Annotated[
    list[str] | None,
    typer.Option(
        "--override-kv",
        metavar="KEY=TYPE:VALUE",
        help="Metadata to use instead of the file's; TYPE is int, float, bool or str; several: again, or ,",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of the text.")]

# The prompt
PromptOption = Annotated[
    str | None, typer.Option("-p", "--prompt", metavar="TEXT", help="The prompt; it may hold escapes, see -e.")
]
FileOption = Annotated[
    str | None, typer.Option("-f", "--file", metavar="FILE", help="Read the prompt from FILE, verbatim; - is stdin.")
]
IdsOption = Annotated[
    str | None, typer.Option("--ids", metavar="1,2,3", help="Token ids instead of a text; nothing is added to them.")
]
EscapeOption = Annotated[
    bool,
    typer.Option(
        "-e/ ",
        "--escape/--no-escape",
        show_default=False,
        help=r"""In -p, read \n \r \t \\ \' \" \xHH as escapes; on by default.""",
    ),
]
DisplayPromptOption = Annotated[
    bool, typer.Option("--display-prompt/--no-display-prompt", help="Show the prompt before the text.")
]

# The context
CtxSizeOption = Annotated[
    int,
    typer.Option(
        "-c", "--ctx-size", metavar="N", help="Tokens that the context holds; 0: as trained, or as memory allows."
    ),
]
ThreadsOption = Annotated[
    int, typer.Option("-t", "--threads", metavar="N", help="Threads; 0 or -1: as many as there are cores for us.")
]
BatchOption = Annotated[int, typer.Option("-b", "--batch-size", metavar="N", help="Tokens handed over at a time.")]
UbatchOption = Annotated[
    int, typer.Option("-ub", "--ubatch-size", metavar="N", help="Tokens computed in one pass; Ctrl-C waits for a pass.")
]
_KV_TYPES = f"{', '.join(KV_TYPES[:-1])} or {KV_TYPES[-1]}"
TypeKOption = Annotated[
    str, typer.Option("-ctk", "--cache-type-k", metavar="TYPE", help=f"How keys are kept: {_KV_TYPES}.")
]
TypeVOption = Annotated[
    str, typer.Option("-ctv", "--cache-type-v", metavar="TYPE", help="How values are kept: one of these too.")
]
SwaFullOption = Annotated[
    bool, typer.Option("--swa-full", help="Keep all tokens in layers with a sliding window, not only the window's.")
]

# The completion
PredictOption = Annotated[
    int,
    typer.Option(
        "-n",
        "--n-predict",
        "--predict",
        metavar="N",
        help="Tokens to generate at most; -1: until the text ends or the context is full; 0: only compute the prompt.",
    ),
]
ParallelOption = Annotated[
    int | None,
    typer.Option(
        "-np",
        "--parallel",
        metavar="N",
        help="Generate N texts, with the seeds -s, -s + 1 ...; -c holds for each. With --batch-lines: N lines at once, "
        "by default 8.",
    ),
]
BatchLinesOption = Annotated[
    bool,
    typer.Option(
        "--batch-lines",
        help="Answer each line of stdin, several at once; -p holds {} where a line is to stand. With --json: JSON "
        "lines in and out.",
    ),
]
LogprobsOption = Annotated[
    int | None,
    typer.Option("--logprobs", metavar="N", help="Give each token's log-probability, and those of the N best."),
]
