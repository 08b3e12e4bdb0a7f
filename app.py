"""The dashboard: python app.py, then open the address it prints."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from specviz.errors import SpecvizError

DEFAULT_PORT = 7860


def main(argv: Sequence[str] | None = None) -> int:
    """Serve the page until interrupted. Returns the exit status: 0, or 2 after an error."""
    began = time.perf_counter()
    options = _parser().parse_args(argv)
    try:
        return _serve(options, began)
    except SpecvizError as error:
        print(f"specviz: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"specviz: the page cannot be served on port {options.port}: {error}", file=sys.stderr)
        return 2


def _serve(options: argparse.Namespace, began: float) -> int:
    from specviz.models.catalog import get_pair
    from specviz.remote import RemoteEngine, read_addresses
    from specviz.ui.attached import AttachedServer
    from specviz.ui.host import EngineHost
    from specviz.ui.page import build_page, launch

    servers = [AttachedServer(RemoteEngine(address)) for address in read_addresses(options.attach)]
    options.load = options.load and not servers  # whoever watches a server need not have room for a model
    host = EngineHost(
        default_pair=get_pair(options.pair).name if options.pair else None,
        default_dtype=options.dtype,
        servers=servers,
    )
    if options.load:
        host.start()
    demo = build_page(host)
    _, url, _ = launch(demo, server_name=options.host, server_port=options.port, prevent_thread_lock=True)
    meanwhile = "; the model loads meanwhile" if options.load else ""
    print(f"specviz is ready at {url} after {time.perf_counter() - began:.1f} s{meanwhile}.", flush=True)
    try:
        while host.status.phase == "loading":
            time.sleep(0.2)
        if options.load:
            print(f"{host.status.text} (after {time.perf_counter() - began:.1f} s)", flush=True)
        while True:
            time.sleep(3600)
    except KeyboardInterrupt:
        return 0
    finally:
        demo.close()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="app.py", description="See speculative decoding accept and reject tokens.")
    parser.add_argument("--port", type=int, default=None, help=f"default: {DEFAULT_PORT}, or the next free one")
    parser.add_argument("--host", default="127.0.0.1", help="0.0.0.0 to serve the network too (default: %(default)s)")
    parser.add_argument("--pair", default="", metavar="NAME", help="model pair to load first (default: the catalog's)")
    attach = "a running vLLM or llama.cpp server to watch, may be repeated; its key is in SPECVIZ_ATTACH_KEY"
    parser.add_argument("--attach", action="append", default=[], metavar="URL", help=f"{attach} (or SPECVIZ_ATTACH)")
    dtypes = ("auto", "bfloat16", "float32")
    parser.add_argument("--dtype", choices=dtypes, default="auto", help="default: what is fast here")
    parser.add_argument("--no-load", dest="load", action="store_false", help="load no model until somebody presses Run")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
