"""What the book and the notebook show, as far as it needs no PyTorch."""

import ast

from pages import blocks, cells


def test_the_graph_of_the_book_is_trained():
    program = blocks("from-pytorch.md")[-1]
    assert "torch" not in program
    exec(compile("import phalanx as px\n" + program, "from-pytorch.md", "exec"), {})


def test_the_notebook_runs():
    """Cells run one after the other; the last expression of each is shown as a notebook shows it."""
    names: dict[str, object] = {}
    shown = []
    for cell in cells("devices.ipynb"):
        tree = ast.parse(cell)
        last = tree.body[-1]
        assert isinstance(last, ast.Expr)
        exec(compile(ast.Module(tree.body[:-1], []), "devices.ipynb", "exec"), names)
        value = eval(compile(ast.Expression(last.value), "devices.ipynb", "eval"), names)
        html = getattr(value, "_repr_html_", None)
        shown.append(html() if html else repr(value))
    assert "fc1.weight" in shown[2] and "<iframe" in shown[3]
    names["trainer"].close()
