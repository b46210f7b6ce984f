"""``pgsluice subscriptions``: its flags and its help."""

from __future__ import annotations

import click

from pgsluice.console.flags import load_settings, takes
from pgsluice.shared.config.settings import GroupSettings, SubscriptionGroupSettings
from pgsluice.shared.process.user import user_name
from pgsluice.shared.subscriptions.subscription_settings import EVENTS

_identifier = click.argument("identifier", metavar="ID")


@click.group()
@takes(SubscriptionGroupSettings, shown=("config", "group", "nats-url"))
def subscriptions() -> None:
    """Who is posted a group's changes by 'pgsluice worker subscriptions', and how each receiver fares.

    Others subscribe over the REST API of 'pgsluice server'.
    """


@subscriptions.command("subscribe", short_help="Have changes posted to a URL, which must want them.")
@takes(SubscriptionGroupSettings)
@click.argument("url")
@click.option("--schema", default="", metavar="NAME", help="Changes of this schema alone (default: any)")
@click.option("--table", default="", metavar="NAME", help="Changes of tables of this name alone (default: any)")
@click.option("--event", "events", multiple=True, type=click.Choice(EVENTS), help="Only these; repeatable (default: all)")
@click.option("--rules", "rules_file", type=click.Path(exists=True, dir_okay=False), help="Rules for what is posted there")
@click.option("--owner", default="", metavar="NAME", help="Whose it is (default: this machine's user)")
@click.option("--worker", default="subscriptions", metavar="NAME", show_default=True, help="The worker that is to serve it")
@click.pass_context
def subscribe(
    context: click.Context,
    url: str,
    schema: str,
    table: str,
    events: tuple[str, ...],
    rules_file: str | None,
    owner: str,
    worker: str,
) -> None:
    """Have a group's changes posted to URL from now on. Prints the subscription's id.

    The receiver is sent a challenge first, which it must send back. Commands show no more of URL than its host.
    """
    settings = load_settings(context, SubscriptionGroupSettings)
    from pgsluice.console.subscriptions.subscribing import SubscriptionWish
    from pgsluice.console.subscriptions.subscription_list import begin
    from pgsluice.shared.config.yaml_nodes import read_text

    rules = read_text(rules_file, "rules file") if rules_file else ""
    begin(settings, SubscriptionWish(url, schema, table, events or EVENTS, worker, rules), owner or user_name())


@subscriptions.command("unsubscribe", short_help="Have nothing posted to a receiver any more.")
@takes(GroupSettings)
@_identifier
@click.pass_context
def unsubscribe(context: click.Context, identifier: str) -> None:
    """End the subscription ID. What its receiver has not got yet it never gets."""
    settings = load_settings(context, GroupSettings)
    from pgsluice.console.subscriptions.subscription_list import end

    end(settings, identifier)


@subscriptions.command("list", short_help="List subscriptions: whose, what, how far.")
@takes(GroupSettings)
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object for each instead of a table")
@click.pass_context
def list_(context: click.Context, as_json: bool) -> None:
    """List the group's subscriptions: whose each is, to what, how far its receiver is, and what is wrong with it."""
    settings = load_settings(context, GroupSettings)
    from pgsluice.console.subscriptions.subscription_list import show

    show(settings, as_json=as_json)


@subscriptions.command("pause", short_help="Post nothing to a receiver until it is resumed.")
@takes(GroupSettings)
@_identifier
@click.pass_context
def pause(context: click.Context, identifier: str) -> None:
    """Post nothing for the subscription ID. The stream does not keep messages for it meanwhile."""
    settings = load_settings(context, GroupSettings)
    from pgsluice.console.subscriptions.subscription_list import halt

    halt(settings, identifier, paused=True)


@subscriptions.command("resume", short_help="Have a paused subscription go on.")
@takes(GroupSettings)
@click.option("--skip", is_flag=True, help="Go on with what comes from now on; what the receiver has not got is left out")
@_identifier
@click.pass_context
def resume(context: click.Context, identifier: str, skip: bool) -> None:
    """Have the subscription ID go on where its receiver is, as far as the stream still holds that."""
    settings = load_settings(context, GroupSettings)
    from pgsluice.console.subscriptions.subscription_list import halt

    halt(settings, identifier, paused=False, skip=skip)


@subscriptions.command("replay", short_help="Post again what a receiver was posted before.")
@takes(GroupSettings)
@click.option("--since", default="", metavar="TIME", help="From then on, like 2026-01-31T12:00:00Z (default: all that is kept)")
@_identifier
@click.pass_context
def replay(context: click.Context, since: str, identifier: str) -> None:
    """Have the receiver of the subscription ID get again what the group's stream still holds, and then go on."""
    settings = load_settings(context, GroupSettings)
    from pgsluice.console.subscriptions.subscription_list import start_again

    start_again(settings, identifier, since)


@subscriptions.command("secret", short_help="Print the secret that a receiver checks signatures with.")
@takes(SubscriptionGroupSettings)
@_identifier
@click.pass_context
def secret(context: click.Context, identifier: str) -> None:
    """Print the secret of the subscription ID, for its receiver alone; while subscriptions-secret is changed, both."""
    settings = load_settings(context, SubscriptionGroupSettings)
    from pgsluice.console.subscriptions.subscription_list import print_secret

    print_secret(settings, identifier)
