"""``make demo-page``: the shop runs, and its page can be opened, until Ctrl-C."""

from __future__ import annotations

import select
import sys

from benchmarks.demo.live_shop import LiveShop, live_shop
from benchmarks.demo.shop_group import DemoError

LOOK_INTERVAL_S = 1.0


def show_link(shop: LiveShop) -> None:
    print(f"\n  {shop.served.link()}\n", flush=True)


def main() -> int:
    print("Servers, shop and page are being started ...", flush=True)
    try:
        with live_shop() as shop:
            print("Open this link within ten minutes; it works once. Enter prints another one, Ctrl-C ends the shop.")
            show_link(shop)
            is_asked = sys.stdin.isatty()
            while True:
                readable, _, _ = select.select([sys.stdin] if is_asked else [], [], [], LOOK_INTERVAL_S)
                shop.check()
                if readable:
                    is_asked = bool(sys.stdin.readline())
                    show_link(shop)
    except DemoError as failure:
        print(f"the demo failed: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nThe shop is closed.")
        return 0


if __name__ == "__main__":
    sys.exit(main())
