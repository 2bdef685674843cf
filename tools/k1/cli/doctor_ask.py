"""`k1 doctor ask`: questions that lead to the cause and its fix."""

from __future__ import annotations

import typer

from k1 import output
from k1.cli.doctor_show import JSON, print_remedy, read_line
from k1.doctor import trees


def ask(
    tree: str | None = typer.Argument(None, help="A decision tree; none: list them."),
    answers: str = typer.Option("", "--answers", help="Keys of the answers, joined by commas, instead of asking."),
    as_json: bool = JSON,
) -> None:
    """Ask questions that lead to the cause and its fix."""
    if tree is None:
        titles = {name: trees.load(name).title for name in trees.names()}
        if as_json:
            output.print_json(titles)
            return
        rows = output.table("tree", "for")
        for name, title in titles.items():
            rows.add_row(name, title)
        output.out.print(rows)
        return
    loaded = trees.load(tree)
    way = trees.replay(loaded, answers.split(",")) if answers else trees.walk(loaded, _put)
    if as_json:
        steps = [{"question": question.text, "answer": answer.key} for question, answer in way.steps]
        output.print_json({"steps": steps} | way.leaf.model_dump(mode="json"))
        return
    output.note(f"{tree}: {' > '.join(answer.key for _, answer in way.steps)}")
    print_remedy(way.leaf.cause, [(fix,) for fix in way.leaf.fix], way.leaf.reference)


def _put(question: trees.Question) -> str:
    output.note(f"\n{question.text}")
    for number, answer in enumerate(question.answers, 1):
        output.note(f"  {number}  {answer.key}: {answer.text}")
    return read_line("> ")
