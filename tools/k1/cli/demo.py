"""`k1 demo`: virtual boards answer a prompt as one."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer

from k1 import demo as demos
from k1 import lab, model, output, paths
from k1.cli import deploy, image
from k1.cli import lab as lab_cli
from k1.errors import K1Error

PROMPT = "The capital of France is"


def demo(
    prompt: str = typer.Argument(PROMPT, help="What the model goes on from; short, emulation is slow."),
    count: int = typer.Option(4, "-n", "--count", min=2, max=16, help="Boards."),
    n_predict: int = typer.Option(8, "--n-predict", min=1, max=256, help="Tokens of the answer."),
    name: str = typer.Option("demo", "--name", help="The lab to use; one that runs is used as it is."),
    model_name: str = typer.Option("smollm2", "--model", help="A name of `k1 model list`."),
    as_json: bool = typer.Option(False, "--json", help="Print answer, timings and health as JSON."),
) -> None:
    """Build what is missing, boot virtual boards, give each a model, and let them answer a prompt as one."""
    found = lab.Lab(name)
    ours = not found.is_on
    seconds: dict[str, float] = {}
    try:
        cluster = _bring_up(found, count, model_name, seconds)
        health = _agree(cluster, seconds, quiet=as_json)
        answer = _ask(cluster, prompt, n_predict, seconds, quiet=as_json)
    except BaseException:
        if ours:
            found.down()
        raise
    if as_json:
        output.print_json({"text": answer.text, "timings": answer.timings, "health": health, "seconds": seconds})
        return
    _show(answer, health)
    output.note("  ".join(f"{what} {output.duration(took)}" for what, took in seconds.items()))
    _say_how_to_go_on(cluster, name)


@contextmanager
def _timed(seconds: dict[str, float], what: str) -> Iterator[None]:
    begun = time.monotonic()
    yield
    seconds[what] = round(time.monotonic() - begun, 1)


def _bring_up(found: lab.Lab, count: int, model_name: str, seconds: dict[str, float]) -> demos.Cluster:
    try:
        lab.Image.find()
    except K1Error:
        with _timed(seconds, "image"):
            image.build_all("virt")
    with output.task(f"model {model_name}") as task:
        file = model.fetch(model_name, paths.cache_dir(), task)
    with _timed(seconds, "boards"):
        boards = lab_cli.start(found, count)
    cluster = demos.Cluster(found, boards[:count], file)
    with _timed(seconds, "model"), output.task(f"{file.name} to {count} boards") as task:
        cluster.put_model(lambda sent, total: task.advance(sent, total))
    return cluster


def _agree(cluster: demos.Cluster, seconds: dict[str, float], *, quiet: bool) -> dict[str, Any]:
    names = [f"k1-{board.rank}" for board in cluster.boards]
    with _timed(seconds, "deploy"), deploy.watching(names, quiet=quiet) as view:
        return cluster.deploy(view.tell)


def _ask(
    cluster: demos.Cluster, prompt: str, n_predict: int, seconds: dict[str, float], *, quiet: bool
) -> demos.Answer:
    output.note(f"POST {cluster.url}/v1/completions")

    def show(piece: str) -> None:
        if not quiet:
            sys.stdout.write(piece)
            sys.stdout.flush()

    show(prompt)
    with _timed(seconds, "answer"):
        answer = cluster.ask(prompt, n_predict, show)
    show("\n")
    return answer


def _show(answer: demos.Answer, health: dict[str, Any]) -> None:
    """Which layers ran where, and what each took."""
    table = output.table("rank", "address", "layers", "ms per token", "waiting", "round trip")
    for rank, stage in zip(health["ranks"], answer.timings["stages"], strict=True):
        first, last = rank["layers"]
        trip = f"{rank['rtt_us'] / 1000:.1f} ms" if rank["rtt_us"] else "-"
        row = (rank["rank"], rank["address"], f"{first}-{last}", f"{stage['run_ms']:.0f}", f"{stage['wait_ms']:.1f}")
        table.add_row(*map(str, row), trip)
    output.out.print(table)
    t = answer.timings
    output.note(
        f"prompt {t['prompt_n']} tokens, {t['prompt_per_second']:.2f} tokens/s; "
        f"generated {t['predicted_n']}, {t['predicted_per_second']:.2f} tokens/s; a hop takes {t['hop_ms']:.1f} ms"
    )


def _say_how_to_go_on(cluster: demos.Cluster, name: str) -> None:
    data = '{"prompt": "Once upon a time", "max_tokens": 8}'
    output.note("the boards go on running (emulated: about 100 times slower than this machine):")
    output.note(f"  curl {cluster.url}/v1/completions -H 'Authorization: Bearer {cluster.token}' -d '{data}'")
    output.note(f"  k1 demo --name {name} 'Another prompt'")
    output.note(f"  k1 lab ssh --name {name} 0   k1 lab status --name {name}   k1 lab down --name {name}")
